"""Values to render the chart with: every mode and store, every option away from its default, what people really set up.

A test holds this table complete: each value of ``values.yaml`` is set by some case, and changes what is rendered.
"""

from typing import Any

Values = dict[str, Any]

SENTINELS = "redis+sentinel://discovery@sentinel-0:26379,sentinel-1:26379/mymaster/0"
DIGEST = "sha256:" + "0123456789abcdef" * 4
TLS = {"enabled": True, "existingSecret": "discovery-tls"}

STORES: dict[str, Values] = {
    "nothing given": {},
    "one replica": {"replicaCount": 1},
    "memory": {"replicaCount": 1, "registrationStorage": "memory"},
    "redis by url": {"redis": {"url": "redis://redis:6379/0"}},
    "redis with a password": {
        "redis": {"url": "redis://discovery@redis:6380/2", "existingSecret": "redis-password", "prefix": "prod"}
    },
    "redis with another key": {
        "redis": {"url": "redis://redis", "existingSecret": "redis", "existingSecretPasswordKey": "redis-password"}
    },
    "redis with certificates": {
        "redis": {
            "url": "rediss://redis:6380",
            "existingSecret": "redis",
            "existingSecretPasswordKey": "",
            "caKey": "ca.crt",
            "certKey": "tls.crt",
            "keyKey": "tls.key",
        }
    },
    "redis behind sentinel": {
        "redis": {
            "url": SENTINELS,
            "existingSecret": "redis",
            "sentinel": {"user": "watcher", "existingSecret": "sentinel", "passwordKey": "sentinel-password"},
        }
    },
    "redis as a cluster": {"redis": {"url": "redis+cluster://redis-0:6379,redis-1:6379", "existingSecret": "redis"}},
    "own redis": {
        "redis": {
            "embedded": {
                "enabled": True,
                "password": "s3cret",
                "image": {
                    "registry": "registry.example.com",
                    "repository": "mirror/redis",
                    "tag": "8.6",
                    "pullPolicy": "Always",
                },
                "persistence": {"enabled": True, "size": "2Gi", "storageClass": "fast"},
                "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "256Mi"}},
                "podSecurityContext": {"runAsUser": None, "runAsGroup": None, "fsGroup": None},
                "securityContext": {"runAsUser": 1001},
                "networkPolicy": {"enabled": False},
            }
        }
    },
    "own redis with a secret": {
        "redis": {
            "embedded": {
                "existingSecret": "redis",
                "image": {"digest": DIGEST},
                "persistence": {"enabled": True, "storageClass": "-"},
            }
        }
    },
    "own redis unwanted": {"redis": {"url": "redis://redis", "embedded": {"enabled": False}}},
    "dynamodb": {
        "registrationStorage": "dynamodb",
        "dynamodb": {"table": "pools", "region": "eu-west-1", "endpointUrl": "http://dynamodb:8000"},
        "serviceAccount": {"annotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::123456789012:role/discovery"}},
    },
}

MODES: dict[str, Values] = {
    "routers by hand": {
        "router": {
            "static": [
                {"id": "router-0", "url": "http://10.0.1.5:9000"},
                {"id": "router-1", "url": "http://[fd00::5]:9000"},
            ]
        }
    },
    "mcs": {
        "poolDiscovery": "mcs",
        "redis": {"url": "redis://redis"},
        "mcs": {
            "relayServiceSuffix": "-relay",
            "frontendServiceSuffix": "-web",
            "relayPortName": "relay",
            "frontendPortName": "web",
            "localClusterId": "us-east-1",
        },
        "router": {"namespace": "routing", "service": "global-router", "portName": "http"},
    },
    "mcs with roles": {
        "poolDiscovery": "mcs",
        "rbac": {"namespaced": True, "namespaces": ["prod", "staging"]},
    },
    "mcs with its own role": {"poolDiscovery": "mcs", "rbac": {"namespaced": True}},
    "mcs without rights": {
        "poolDiscovery": "mcs",
        "rbac": {"create": False},
        "serviceAccount": {"create": False, "name": "of-an-administrator"},
    },
    "karmada": {
        "poolDiscovery": "karmada",
        "karmada": {"kubeconfigSecret": "karmada", "kubeconfigKey": "config", "contexts": ["karmada", "member-1"]},
    },
    "karmada with the account of the pod": {"poolDiscovery": "karmada", "replicaCount": 3},
    "mcs of other clusters": {
        "poolDiscovery": "mcs",
        "registrationStorage": "memory",
        "replicaCount": 1,
        "karmada": {"kubeconfigSecret": "clusters", "contexts": ["east", "west"]},
    },
    "account by name": {"serviceAccount": {"name": "pools"}},
    "account of nobody": {"serviceAccount": {"create": False}},
}

# Numbers that a values file turns into 1e+06 where a template is careless.
LARGE: Values = {
    "config": {
        "leaseDurationSecs": 86400,
        "heartbeatIntervalSecs": 86000,
        "massLossHoldSecs": 86400,
        "logFormat": "text",
        "logLevel": "debug",
        "accessLog": True,
        "otlpEndpoint": "http://collector.observability:4318",
        "maxBodyBytes": 1073741824,
        "maxHeaderBytes": 1048576,
        "maxStreams": 1000000,
        "maxConnections": 1000000,
        "maxPools": 10000000,
        "maxPoolsPerCluster": 10000000,
        "drainDelaySecs": 3600,
        "shutdownGraceSecs": 3600,
        "storeTimeoutMs": 600000,
        "requestTimeoutSecs": 3600,
        "writeStallTimeoutSecs": 3600,
        "transferTimeoutSecs": 86400,
        "keepAliveSecs": 3600,
        "rateLimit": 1000000,
        "corsOrigin": "https://pools.example.com",
    }
}

SERVING: dict[str, Values] = {
    "large numbers": LARGE,
    "decimals": {
        "config": {"leaseDurationSecs": 1.5, "heartbeatIntervalSecs": 0.25, "drainDelaySecs": 0.5, "rateLimit": 0.5}
    },
    "zeros": {
        "config": {
            "massLossHoldSecs": 0,
            "maxStreams": 0,
            "maxPoolsPerCluster": 0,
            "drainDelaySecs": 0,
            "shutdownGraceSecs": 0,
            "rateLimit": 0,
        }
    },
    "another port": {"listen": {"host": "[::]", "port": 9090}, "service": {"port": 80}},
    "https": {"tls": TLS | {"certKey": "cert.pem", "keyKey": "key.pem"}},
    "https for known clients": {"tls": TLS | {"clientCaSecret": "clients-ca", "clientCaKey": "clients.crt"}},
    "tokens": {"auth": {"tokensSecret": "tokens", "tokensKey": "tokens.json"}},
    "health apart": {"healthListen": {"enabled": True, "port": 9091}},
    "health not apart": {"healthListen": {"enabled": False}},
    "node port": {
        "service": {
            "type": "NodePort",
            "nodePort": 30080,
            "externalTrafficPolicy": "Local",
            "annotations": {"example.com/team": "routing"},
            "labels": {"example.com/tier": "edge"},
        }
    },
    "load balancer": {
        "service": {
            "type": "LoadBalancer",
            "loadBalancerClass": "example.com/internal",
            "loadBalancerSourceRanges": ["10.0.0.0/8"],
        }
    },
    "headless": {"service": {"clusterIP": "None"}},
    "dual stack": {"service": {"ipFamilyPolicy": "PreferDualStack", "ipFamilies": ["IPv6", "IPv4"]}},
    "ipv6 only": {"service": {"ipFamilyPolicy": "SingleStack", "ipFamilies": ["IPv6"]}},
    "exported": {"serviceExport": {"enabled": True, "annotations": {"example.com/team": "routing"}}},
}

EDGES: dict[str, Values] = {
    "ingress": {
        "ingress": {
            "enabled": True,
            "className": "nginx",
            "annotations": {"example.com/team": "routing"},
            "hosts": [{"host": "discovery.example.com", "paths": [{"path": "/pools", "pathType": "Prefix"}]}],
            "tls": [{"hosts": ["discovery.example.com"], "secretName": "discovery-tls"}],
        }
    },
    "ingress for one host": {"ingress": {"enabled": True, "hosts": [{"host": "discovery.example.com"}]}},
    "ingress to https": {"tls": TLS, "ingress": {"enabled": True, "hosts": [{"host": "discovery.example.com"}]}},
    "route": {
        "httpRoute": {
            "enabled": True,
            "parentRefs": [{"name": "public", "namespace": "gateways"}],
            "hostnames": ["discovery.example.com"],
            "annotations": {"example.com/team": "routing"},
            "matches": [{"path": {"type": "PathPrefix", "value": "/pools"}}],
            "filters": [{"type": "RequestHeaderModifier", "requestHeaderModifier": {"remove": ["x-team"]}}],
            "timeouts": {"request": "1h", "backendRequest": "1h"},
        }
    },
    "route without timeouts": {"httpRoute": {"enabled": True, "parentRefs": [{"name": "public"}], "timeouts": None}},
    "network policy": {"networkPolicy": {"enabled": True}},
    "network policy for redis and clusters": {
        "poolDiscovery": "mcs",
        "redis": {"url": "rediss://redis:6390"},
        "healthListen": {"enabled": True},
        "networkPolicy": {
            "enabled": True,
            "ingressFrom": [{"namespaceSelector": {}}],
            "metricsFrom": [{"namespaceSelector": {"matchLabels": {"team": "metrics"}}}],
            "extraIngress": [{"from": [{"ipBlock": {"cidr": "10.1.0.0/16"}}]}],
            "egress": {
                "dnsPorts": [53],
                "dnsTo": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}}}],
                "redisTo": [{"ipBlock": {"cidr": "10.2.0.0/16"}}],
                "redisPorts": [6390, 6391],
                "apiServerTo": [{"ipBlock": {"cidr": "10.3.0.1/32"}}],
                "apiServerPorts": [8443],
                "extra": [{"to": [{"ipBlock": {"cidr": "10.4.0.0/16"}}]}],
            },
        },
    },
    "network policy for sentinels": {"redis": {"url": SENTINELS}, "networkPolicy": {"enabled": True}},
    "network policy for dynamodb": {
        "registrationStorage": "dynamodb",
        "dynamodb": {"table": "pools"},
        "networkPolicy": {"enabled": True},
    },
    "network policy inwards alone": {"networkPolicy": {"enabled": True, "egress": {"enabled": False}}},
}

RUNNING: dict[str, Values] = {
    "no budget": {"podDisruptionBudget": {"enabled": False}},
    "budget by what stays": {"replicaCount": 3, "podDisruptionBudget": {"minAvailable": 2}},
    "budget by what goes": {"replicaCount": 5, "podDisruptionBudget": {"maxUnavailable": "40%"}},
    "autoscaling": {
        "autoscaling": {
            "enabled": True,
            "minReplicas": 3,
            "maxReplicas": 12,
            "targetCPUUtilizationPercentage": 60,
            "targetMemoryUtilizationPercentage": 80,
            "metrics": [
                {
                    "type": "Pods",
                    "pods": {"metric": {"name": "streams"}, "target": {"type": "AverageValue", "averageValue": "4k"}},
                }
            ],
            "behavior": {
                "scaleDown": {
                    "stabilizationWindowSeconds": 1200,
                    "policies": [{"type": "Pods", "value": 2, "periodSeconds": 60}],
                }
            },
        }
    },
    "service monitor": {
        "metrics": {
            "serviceMonitor": {
                "enabled": True,
                "namespace": "monitoring",
                "labels": {"release": "prometheus"},
                "interval": "30s",
                "scrapeTimeout": "10s",
                "relabelings": [{"sourceLabels": ["__meta_kubernetes_pod_node_name"], "targetLabel": "node"}],
                "metricRelabelings": [{"action": "drop", "regex": "python_.*", "sourceLabels": ["__name__"]}],
                "tlsConfig": {"insecureSkipVerify": True},
                "authorization": {"credentials": {"name": "metrics-token", "key": "token"}},
            }
        },
        "tls": TLS,
    },
    "plain service monitor": {"metrics": {"serviceMonitor": {"enabled": True}}},
    "service monitor of the health port": {
        "healthListen": {"enabled": True},
        "metrics": {"serviceMonitor": {"enabled": True}},
    },
    "pod monitor": {
        "metrics": {
            "podMonitor": {
                "enabled": True,
                "namespace": "monitoring",
                "labels": {"release": "prometheus"},
                "interval": "30s",
                "scrapeTimeout": "10s",
                "relabelings": [{"sourceLabels": ["__meta_kubernetes_pod_node_name"], "targetLabel": "node"}],
                "metricRelabelings": [{"action": "drop", "regex": "python_.*", "sourceLabels": ["__name__"]}],
                "tlsConfig": {"insecureSkipVerify": True},
                "authorization": {"credentials": {"name": "metrics-token", "key": "token"}},
            }
        },
        "tls": TLS,
    },
    "plain pod monitor": {"metrics": {"podMonitor": {"enabled": True}}},
    "alerts and dashboard": {
        "metrics": {
            "prometheusRule": {
                "enabled": True,
                "namespace": "monitoring",
                "labels": {"release": "prometheus"},
                "selector": 'namespace="prod", app="discovery"',
                "groupBy": ["cluster", "namespace"],
                "alertLabels": {"team": "routing", "severity": "page"},
                "disabled": ["DiscoveryRelaysDisagree"],
                "runbookUrl": "https://runbooks.example.com/discovery",
                "thresholds": {
                    "nothingListedFor": "1h",
                    "incompleteFor": "10m",
                    "leasesEndingShare": 0.25,
                    "leasesEndingFor": "4m",
                    "poolsLostShare": 0.2,
                    "quietSecs": 45,
                    "oneSidedPools": 3,
                    "oneSidedFor": "1h30m",
                    "refusedShare": 0.5,
                    "storeDownFor": "2m",
                    "storeOutages": 10,
                    "storeSlowSecs": 1.5,
                    "watcherFailingFor": "10m",
                    "watcherFailures": 100,
                    "lagSecs": 2.5,
                    "serverErrorsShare": 0.01,
                    "clientsDropped": 1000,
                    "limitShare": 0.75,
                    "loopLagSecs": 0.1,
                    "restarts": 5,
                    "certificateDays": 30,
                },
                "extraGroups": [{"name": "ours", "rules": [{"alert": "NoPools", "expr": "vector(1)", "for": "5m"}]}],
            },
            "dashboard": {
                "enabled": True,
                "namespace": "monitoring",
                "labels": {"grafana_dashboard": "yes"},
                "annotations": {"grafana_folder": "Routing"},
            },
        }
    },
    "scheduling": {
        "resources": {"requests": {"cpu": 2, "memory": "1Gi"}, "limits": {"memory": "2Gi"}},
        "nodeSelector": {"kubernetes.io/arch": "amd64"},
        "tolerations": [{"key": "dedicated", "operator": "Exists", "effect": "NoSchedule"}],
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchExpressions": [{"key": "gpu", "operator": "DoesNotExist"}]}]
                }
            }
        },
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "DoNotSchedule",
                "labelSelector": {"matchLabels": {"app.kubernetes.io/instance": "discovery"}},
            }
        ],
        "priorityClassName": "high",
        "revisionHistoryLimit": 2,
        "startupProbe": {"periodSeconds": 5, "timeoutSeconds": 1, "failureThreshold": 100},
        "readinessProbe": {"periodSeconds": 1, "timeoutSeconds": 1, "failureThreshold": 1},
        "livenessProbe": {"periodSeconds": 20, "timeoutSeconds": 2, "failureThreshold": 9},
    },
    "no spread": {"topologySpreadConstraints": []},
    "openshift": {
        "podSecurityContext": {"runAsUser": None, "runAsGroup": None, "fsGroup": None},
        "redis": {"embedded": {"podSecurityContext": {"runAsUser": None, "runAsGroup": None, "fsGroup": None}}},
    },
    "user and group": {
        "podSecurityContext": {"runAsUser": 4711, "fsGroup": 4711},
        "securityContext": {"runAsGroup": 4711},
    },
    "names": {"nameOverride": "pools", "fullnameOverride": "pool-discovery"},
    "name of the chart": {"nameOverride": "pools"},
    "images": {
        "image": {"repository": "team/discovery", "tag": "1.2.3", "pullPolicy": "Always"},
        "global": {"imageRegistry": "mirror.example.com", "imagePullSecrets": ["mirror"]},
        "imagePullSecrets": [{"name": "of-the-team"}],
    },
    "image by digest": {"image": {"registry": "registry.example.com", "digest": DIGEST}},
    "image with a number for a tag": {"image": {"tag": 20261130}},
    "labels and annotations": {
        "commonLabels": {"example.com/team": "routing"},
        "commonAnnotations": {"example.com/contact": "routing@example.com"},
        "podAnnotations": {"example.com/sidecar": "false"},
        "podLabels": {"example.com/mesh": "off"},
        "deploymentAnnotations": {"example.com/restart": "yes"},
        "networkPolicy": {"enabled": True},
        "ingress": {"enabled": True, "hosts": [{"host": "a.example.com"}]},
        "metrics": {
            "serviceMonitor": {"enabled": True},
            "prometheusRule": {"enabled": True},
            "dashboard": {"enabled": True},
        },
    },
    "extras": {
        "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
        "extraArgs": ["--max-pools=5"],
        "extraVolumes": [{"name": "scratch", "emptyDir": {}}],
        "extraVolumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
        "extraContainers": [
            {
                "name": "sidecar",
                "image": "registry.example.com/sidecar:1",
                "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
            }
        ],
        "extraObjects": [
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": "more"},
                "data": {"of": "{{ .Release.Name }}"},
            },
            "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: yet-more\n",
        ],
    },
    "no test": {"tests": {"enabled": False}},
    "switched off by a parent": {"enabled": False},
}

CASES: dict[str, Values] = STORES | MODES | SERVING | EDGES | RUNNING
