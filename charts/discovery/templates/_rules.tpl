{{/*
What contradicts what, as at the start of the program, so that an installation fails at once and not in the pods. All faults
are said together. Nothing of `redis.url` is ever repeated: it may hold a password.
*/}}
{{- define "discovery.rules" -}}
{{- $faults := list -}}
{{- range list "store" "redis" "modes" "times" "numbers" "tls" "network" "scale" "metrics" -}}
{{- range splitList "\n" (include (printf "discovery.rules.%s" .) $ | trim) -}}
{{- with trim . }}{{ $faults = append $faults (printf "- %s" .) }}{{ end -}}
{{- end -}}
{{- end -}}
{{- with $faults -}}
{{- fail (printf "\n\nThe values of discovery contradict each other:\n%s\n" (join "\n" .)) -}}
{{- end -}}
{{- end -}}

{{/* The given ones of some values, as text: (dict "values" (dict "redis.url" .Values.redis.url …)). */}}
{{- define "discovery.given" -}}
{{- $given := list -}}
{{- range $name, $value := . -}}
{{- if $value -}}{{- $given = append $given $name -}}{{- end -}}
{{- end -}}
{{- join ", " $given -}}
{{- end -}}

{{- define "discovery.rules.store" -}}
{{- $storage := .Values.registrationStorage -}}
{{- $redis := .Values.redis -}}
{{- $most := include "discovery.mostReplicas" . | int -}}
{{- if and (eq $storage "memory") (gt $most 1) }}
registrationStorage memory keeps registrations in one process, and {{ .Values.autoscaling.enabled | ternary "autoscaling.maxReplicas" "replicaCount" }} is {{ $most }}: each replica would know other pools. Either set {{ .Values.autoscaling.enabled | ternary "autoscaling.enabled=false and replicaCount=1" "replicaCount=1" }}, or registrationStorage=redis (with redis.url empty the chart brings a Redis)
{{- end }}
{{- if ne $storage "redis" }}
{{- with include "discovery.given" (dict "redis.url" $redis.url "redis.existingSecret" $redis.existingSecret "redis.caKey" $redis.caKey "redis.certKey" $redis.certKey "redis.keyKey" $redis.keyKey "redis.prefix" $redis.prefix "redis.sentinel.user" $redis.sentinel.user "redis.sentinel.existingSecret" $redis.sentinel.existingSecret "redis.embedded.enabled" $redis.embedded.enabled "redis.embedded.password" $redis.embedded.password "redis.embedded.existingSecret" $redis.embedded.existingSecret) }}
{{ . }}: needs registrationStorage redis, but it is {{ $storage }}
{{- end }}
{{- end }}
{{- if eq $storage "dynamodb" }}
{{- if not .Values.dynamodb.table }}
registrationStorage dynamodb needs dynamodb.table
{{- end }}
{{- $region := .Values.dynamodb.region | default "" -}}
{{- if regexMatch "^[a-z]{2,}(-[a-z]+)+-[0-9]+[a-z]$" $region }}
dynamodb.region {{ $region }} is a zone: the region is {{ regexFind "^[a-z-]+[0-9]+" $region }}
{{- end }}
{{- $ofTable := .Values.dynamodb.table | default "" | regexFind "^arn:[a-z-]+:dynamodb:[a-z0-9-]+" | splitList ":" | last -}}
{{- if and $region $ofTable (ne $region $ofTable) }}
dynamodb.table has an ARN of {{ $ofTable }}, and dynamodb.region is {{ $region }}: a table is in its own region
{{- end }}
{{- else }}
{{- with include "discovery.given" (dict "dynamodb.table" .Values.dynamodb.table "dynamodb.region" .Values.dynamodb.region "dynamodb.endpointUrl" .Values.dynamodb.endpointUrl) }}
{{ . }}: needs registrationStorage dynamodb, but it is {{ $storage }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "discovery.rules.redis" -}}
{{- $redis := .Values.redis -}}
{{- $url := $redis.url | default "" -}}
{{- if ne .Values.registrationStorage "redis" -}}
{{- else if not $url -}}
{{- if eq (toString $redis.embedded.enabled) "false" }}
registrationStorage redis needs redis.url, or redis.embedded.enabled=true for a single Redis of the chart's own
{{- end }}
{{- with include "discovery.given" (dict "redis.existingSecret" $redis.existingSecret "redis.caKey" $redis.caKey "redis.certKey" $redis.certKey "redis.keyKey" $redis.keyKey "redis.sentinel.user" $redis.sentinel.user "redis.sentinel.existingSecret" $redis.sentinel.existingSecret) }}
{{ . }}: needs redis.url; the Secret of the chart's own Redis is redis.embedded.existingSecret
{{- end }}
{{- if and $redis.embedded.password $redis.embedded.existingSecret }}
redis.embedded.password and redis.embedded.existingSecret: give one of them
{{- end }}
{{- else -}}
{{- if $redis.embedded.enabled }}
redis.embedded.enabled and redis.url: give one of them
{{- end }}
{{- with include "discovery.given" (dict "redis.embedded.password" $redis.embedded.password "redis.embedded.existingSecret" $redis.embedded.existingSecret) }}
{{ . }}: belongs to the chart's own Redis, but redis.url is given; the Secret of that one is redis.existingSecret
{{- end }}
{{- if or (regexMatch "^[a-z+]+://[^/?]*:[^/?]*@" $url) (regexMatch "[?&]password=" $url) }}
redis.url has a password, which everyone could read in the ConfigMap: put it in a Secret (kubectl create secret generic NAME --from-literal=password=…) and set redis.existingSecret=NAME; a user may stay in the URL, as in redis://user@host:6379/0
{{- else if not (include "discovery.isRedisUrl" $url) }}
redis.url must be like redis://host:6379/0, redis+sentinel://host:26379,host:26379/service/0, redis+cluster://host:6379,host:6379 (rediss… for TLS), or unix:///path
{{- end }}
{{- $files := include "discovery.given" (dict "redis.caKey" $redis.caKey "redis.certKey" $redis.certKey "redis.keyKey" $redis.keyKey) }}
{{- if and $files (not $redis.existingSecret) }}
{{ $files }}: needs redis.existingSecret, the Secret that has them
{{- end }}
{{- if and $files (not (hasPrefix "rediss" $url)) }}
{{ $files }}: needs redis.url with rediss://, rediss+sentinel:// or rediss+cluster://
{{- end }}
{{- if ne (empty $redis.certKey) (empty $redis.keyKey) }}
redis.certKey and redis.keyKey: both or neither
{{- end }}
{{- if and $redis.existingSecret (not $files) (not $redis.existingSecretPasswordKey) }}
redis.existingSecret is given, but none of redis.existingSecretPasswordKey, redis.caKey, redis.certKey and redis.keyKey
{{- end }}
{{- $sentinel := include "discovery.given" (dict "redis.sentinel.user" $redis.sentinel.user "redis.sentinel.existingSecret" $redis.sentinel.existingSecret) }}
{{- if and $sentinel (not (regexMatch "^rediss?\\+sentinel://" $url)) }}
{{ $sentinel }}: needs redis.url with redis+sentinel:// or rediss+sentinel://
{{- end }}
{{- if and $redis.sentinel.user (not $redis.sentinel.existingSecret) }}
redis.sentinel.user needs redis.sentinel.existingSecret, the Secret with its password
{{- end }}
{{- if and $redis.sentinel.existingSecret (not $redis.sentinel.passwordKey) }}
redis.sentinel.existingSecret needs redis.sentinel.passwordKey
{{- end }}
{{- end }}
{{- end -}}

{{/* "true" where it is one server, Sentinels with a service, a Cluster, or a socket. Takes the URL. */}}
{{- define "discovery.isRedisUrl" -}}
{{- $user := "([^@/?#\\s]+@)?" -}}
{{- $end := "(\\?[^#\\s]+)?$" -}}
{{- $host := "[^@,/?#\\s]+" -}}
{{- $hosts := printf "%s(,%s)*" $host $host -}}
{{- $server := printf "^rediss?://%s%s(/[0-9]*)?%s" $user $host $end -}}
{{- $sentinel := printf "^rediss?\\+sentinel://%s%s/[^@/?#\\s]+(/[0-9]*)?%s" $user $hosts $end -}}
{{- $cluster := printf "^rediss?\\+cluster://%s%s(/0?)?%s" $user $hosts $end -}}
{{- $socket := printf "^unix:///[^?#\\s]+%s" $end -}}
{{- range list $server $sentinel $cluster $socket -}}
{{- if regexMatch . $ }}true{{ end -}}
{{- end -}}
{{- end -}}

{{- define "discovery.rules.modes" -}}
{{- $mode := .Values.poolDiscovery -}}
{{- $mcs := .Values.mcs -}}
{{- $karmada := .Values.karmada -}}
{{- $router := .Values.router -}}
{{- if include "discovery.watches" . }}
{{- if $router.static }}
router.static: needs poolDiscovery registrations, but it is {{ $mode }}; set router.namespace and router.service here
{{- end }}
{{- else }}
{{- with include "discovery.given" (dict "mcs.relayServiceSuffix" $mcs.relayServiceSuffix "mcs.frontendServiceSuffix" $mcs.frontendServiceSuffix "mcs.relayPortName" $mcs.relayPortName "mcs.frontendPortName" $mcs.frontendPortName "mcs.localClusterId" $mcs.localClusterId "karmada.kubeconfigSecret" $karmada.kubeconfigSecret "karmada.contexts" $karmada.contexts "router.namespace" $router.namespace "router.service" $router.service "router.portName" $router.portName) }}
{{ . }}: needs poolDiscovery mcs or karmada, but it is {{ $mode }}
{{- end }}
{{- end }}
{{- if ne (empty $router.namespace) (empty $router.service) }}
router.namespace and router.service: both or neither
{{- end }}
{{- if and $router.portName (not $router.service) }}
router.portName needs router.namespace and router.service too
{{- end }}
{{- $ids := list }}
{{- range $router.static }}
{{- if has .id $ids }}
router.static has the id {{ .id }} twice: each router has its own
{{- end }}
{{- $ids = append $ids .id }}
{{- end }}
{{- $relay := $mcs.relayServiceSuffix | default "-pool-relay" }}
{{- $frontend := $mcs.frontendServiceSuffix | default "-frontend" }}
{{- if or (hasSuffix $relay $frontend) (hasSuffix $frontend $relay) }}
mcs.relayServiceSuffix ({{ $relay }}) and mcs.frontendServiceSuffix ({{ $frontend }}) must differ, and none may end in the other: a Service would be both
{{- end }}
{{- if and $karmada.contexts (not $karmada.kubeconfigSecret) }}
karmada.contexts needs karmada.kubeconfigSecret, the Secret with the kubeconfig that has them
{{- end }}
{{- if and $karmada.kubeconfigSecret (not $karmada.kubeconfigKey) }}
karmada.kubeconfigSecret needs karmada.kubeconfigKey
{{- end }}
{{- if ne (len ($karmada.contexts | default list)) (len ($karmada.contexts | default list | uniq)) }}
karmada.contexts has a context twice: a cluster is watched once
{{- end }}
{{- if and .Values.rbac.namespaces (not .Values.rbac.namespaced) }}
rbac.namespaces needs rbac.namespaced=true
{{- end }}
{{- end -}}

{{- define "discovery.rules.times" -}}
{{- $lease := include "discovery.numberOr" (dict "value" .Values.config.leaseDurationSecs "default" 15) -}}
{{- $heartbeat := include "discovery.numberOr" (dict "value" .Values.config.heartbeatIntervalSecs "default" 5) -}}
{{- if le (float64 $lease) (float64 $heartbeat) }}
config.leaseDurationSecs ({{ $lease }}) must be above config.heartbeatIntervalSecs ({{ $heartbeat }})
{{- end }}
{{- if lt (float64 $lease) 0.001 }}
config.leaseDurationSecs must be at least a millisecond (0.001)
{{- end }}
{{- end -}}

{{/* The schema knows the range of numbers, but not that of numbers in quotes. */}}
{{- define "discovery.rules.numbers" -}}
{{- $highest := dict "leaseDurationSecs" 86400 "heartbeatIntervalSecs" 86400 "massLossHoldSecs" 86400 "maxBodyBytes" 1073741824 "maxHeaderBytes" 1048576 "maxStreams" 1000000 "maxConnections" 1000000 "maxPools" 10000000 "maxPoolsPerCluster" 10000000 "drainDelaySecs" 3600 "shutdownGraceSecs" 3600 "storeTimeoutMs" 600000 "requestTimeoutSecs" 3600 "writeStallTimeoutSecs" 3600 "transferTimeoutSecs" 86400 "keepAliveSecs" 3600 "rateLimit" 1000000 -}}
{{- $lowest := dict "maxBodyBytes" 1 "maxHeaderBytes" 256 "maxConnections" 1 "maxPools" 1 "storeTimeoutMs" 1 -}}
{{- $above := list "leaseDurationSecs" "heartbeatIntervalSecs" "requestTimeoutSecs" "writeStallTimeoutSecs" "transferTimeoutSecs" "keepAliveSecs" -}}
{{- range $key, $most := $highest }}
{{- $value := get $.Values.config $key }}
{{- if and (kindIs "string" $value) $value }}
{{- $number := float64 $value }}
{{- $least := get $lowest $key | default 0 }}
{{- if or (gt $number (float64 $most)) (lt $number (float64 $least)) (and (has $key $above) (le $number 0.0)) }}
config.{{ $key }} must be {{ has $key $above | ternary "above 0 and at most" (printf "from %d to" (int $least)) }} {{ $most }}, not {{ $value }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "discovery.rules.tls" -}}
{{- $tls := .Values.tls -}}
{{- if $tls.enabled }}
{{- if not $tls.existingSecret }}
tls.enabled needs tls.existingSecret, the Secret with certificate and key
{{- end }}
{{- if or (not $tls.certKey) (not $tls.keyKey) }}
tls.certKey and tls.keyKey: both are needed
{{- end }}
{{- else }}
{{- with include "discovery.given" (dict "tls.existingSecret" $tls.existingSecret "tls.clientCaSecret" $tls.clientCaSecret) }}
{{ . }}: needs tls.enabled=true
{{- end }}
{{- end }}
{{- if $tls.clientCaSecret }}
{{- if not $tls.clientCaKey }}
tls.clientCaSecret needs tls.clientCaKey
{{- end }}
{{- if not (include "discovery.healthListen" .) }}
tls.clientCaSecret needs healthListen.enabled=true: probes have no certificate
{{- end }}
{{- end }}
{{- if and (include "discovery.healthListen" .) (eq (include "discovery.number" .Values.listen.port) (include "discovery.number" .Values.healthListen.port)) }}
healthListen.port must be another one than listen.port
{{- end }}
{{- if and .Values.auth.tokensSecret (not .Values.auth.tokensKey) }}
auth.tokensSecret needs auth.tokensKey
{{- end }}
{{- end -}}

{{- define "discovery.rules.network" -}}
{{- $service := .Values.service -}}
{{- $name := include "discovery.fullname" . -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" $name) }}
the name {{ $name }} can be no Service's, which begins with a letter and has a-z 0-9 - alone: set fullnameOverride
{{- end }}
{{- if and $service.nodePort (not (has $service.type (list "NodePort" "LoadBalancer"))) }}
service.nodePort needs service.type NodePort or LoadBalancer
{{- end }}
{{- if and (eq (len ($service.ipFamilies | default list)) 2) (not (has $service.ipFamilyPolicy (list "PreferDualStack" "RequireDualStack"))) }}
service.ipFamilies has two families: set service.ipFamilyPolicy to PreferDualStack or RequireDualStack
{{- end }}
{{- if and .Values.ingress.enabled (not .Values.ingress.hosts) }}
ingress.enabled needs ingress.hosts
{{- end }}
{{- if and .Values.httpRoute.enabled (not .Values.httpRoute.parentRefs) }}
httpRoute.enabled needs httpRoute.parentRefs, the Gateways to attach to
{{- end }}
{{- end -}}

{{- define "discovery.rules.scale" -}}
{{- $scaling := .Values.autoscaling -}}
{{- $budget := .Values.podDisruptionBudget -}}
{{- $fewest := include "discovery.fewestReplicas" . | int -}}
{{- if $scaling.enabled }}
{{- if gt (int $scaling.minReplicas) (int $scaling.maxReplicas) }}
autoscaling.minReplicas ({{ int $scaling.minReplicas }}) must be at most autoscaling.maxReplicas ({{ int $scaling.maxReplicas }})
{{- end }}
{{- if not (or $scaling.targetCPUUtilizationPercentage $scaling.targetMemoryUtilizationPercentage $scaling.metrics) }}
autoscaling.enabled needs autoscaling.targetCPUUtilizationPercentage, autoscaling.targetMemoryUtilizationPercentage or autoscaling.metrics
{{- end }}
{{- end }}
{{- if $budget.enabled }}
{{- $stay := include "discovery.amount" $budget.minAvailable }}
{{- $go := include "discovery.amount" $budget.maxUnavailable }}
{{- if and $stay $go }}
podDisruptionBudget.minAvailable and podDisruptionBudget.maxUnavailable: give one of them
{{- end }}
{{- if and $stay (gt $fewest 1) (ge (include "discovery.amountOf" (dict "amount" $stay "all" $fewest) | int) $fewest) }}
podDisruptionBudget.minAvailable ({{ $stay }}) is all of {{ $fewest }} replicas: no node could ever be drained
{{- end }}
{{- if and $go (eq (trimSuffix "%" $go | int) 0) }}
podDisruptionBudget.maxUnavailable ({{ $go }}) lets no pod go: no node could ever be drained
{{- end }}
{{- end }}
{{- end -}}

{{/* A number or a percentage as text; empty where none is given. Takes the value. */}}
{{- define "discovery.amount" -}}
{{- if not (kindIs "invalid" .) }}{{ include "discovery.number" . }}{{ end -}}
{{- end -}}

{{/* How many pods a number or a percentage of all is; percentages are rounded up, as Kubernetes does. */}}
{{- define "discovery.amountOf" -}}
{{- if hasSuffix "%" .amount -}}
{{- div (add (mul (trimSuffix "%" .amount | int) .all) 99) 100 -}}
{{- else -}}
{{- .amount -}}
{{- end -}}
{{- end -}}

{{- define "discovery.rules.metrics" -}}
{{- if and .Values.metrics.serviceMonitor.enabled .Values.metrics.podMonitor.enabled }}
metrics.serviceMonitor.enabled and metrics.podMonitor.enabled: give one of them, or everything is scraped twice
{{- end }}
{{- $known := splitList "," (include "discovery.alertNames" .) }}
{{- range .Values.metrics.prometheusRule.disabled }}
{{- if not (has . $known) }}
metrics.prometheusRule.disabled names no alert of this chart: {{ . }}
{{- end }}
{{- end }}
{{- end -}}
