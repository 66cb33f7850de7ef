{{/* What the program is told: variables, files, times. Everything takes the root context. */}}

{{/* Where it listens, without the port: IPv6 (which takes IPv4 too) only where it is asked for, since nodes may lack it. */}}
{{- define "discovery.listenHost" -}}
{{- $sixth := or (has "IPv6" (.Values.service.ipFamilies | default list)) (has .Values.service.ipFamilyPolicy (list "PreferDualStack" "RequireDualStack")) -}}
{{- .Values.listen.host | default ($sixth | ternary "[::]" "0.0.0.0") -}}
{{- end -}}

{{/* Name and number of the port that probes and metrics use, and its scheme. */}}
{{- define "discovery.probePort" -}}
{{- eq (include "discovery.healthListen" .) "true" | ternary "health" "http" -}}
{{- end -}}

{{- define "discovery.probeScheme" -}}
{{- if include "discovery.healthListen" . }}http{{ else }}{{ include "discovery.scheme" . }}{{ end -}}
{{- end -}}

{{/* A number as text, or the program's default where none is given: 0 is given. (dict "value" … "default" 5). */}}
{{- define "discovery.numberOr" -}}
{{- $text := kindIs "invalid" .value | ternary "" (include "discovery.number" .value) -}}
{{- $text | default (toString .default) -}}
{{- end -}}

{{/* Seconds that a pod has to end: what the program takes at most, and some for the container runtime. */}}
{{- define "discovery.gracePeriod" -}}
{{- $drain := include "discovery.numberOr" (dict "value" .Values.config.drainDelaySecs "default" 5) | float64 -}}
{{- $grace := include "discovery.numberOr" (dict "value" .Values.config.shutdownGraceSecs "default" 10) | float64 -}}
{{- add (ceil (addf $drain $grace) | int64) 5 -}}
{{- end -}}

{{/* Most pods that there may be at a time, and fewest. */}}
{{- define "discovery.mostReplicas" -}}
{{- .Values.autoscaling.enabled | ternary .Values.autoscaling.maxReplicas .Values.replicaCount | int -}}
{{- end -}}

{{- define "discovery.fewestReplicas" -}}
{{- .Values.autoscaling.enabled | ternary .Values.autoscaling.minReplicas .Values.replicaCount | int -}}
{{- end -}}

{{/* Which key of which Secret becomes which file below /etc/discovery; one volume for each entry. */}}
{{- define "discovery.files" -}}
{{- $files := list -}}
{{- with include "discovery.redis.secretName" . -}}
{{- $redis := $.Values.redis -}}
{{- $items := dict "password" (include "discovery.redis.passwordKey" $) "ca.crt" $redis.caKey "tls.crt" $redis.certKey "tls.key" $redis.keyKey -}}
{{- $files = append $files (dict "name" "redis" "secret" . "items" $items) -}}
{{- end -}}
{{- with .Values.redis.sentinel.existingSecret -}}
{{- $files = append $files (dict "name" "redis-sentinel" "secret" . "items" (dict "password" $.Values.redis.sentinel.passwordKey)) -}}
{{- end -}}
{{- if .Values.tls.enabled -}}
{{- $files = append $files (dict "name" "tls" "secret" .Values.tls.existingSecret "items" (dict "tls.crt" .Values.tls.certKey "tls.key" .Values.tls.keyKey)) -}}
{{- end -}}
{{- with .Values.tls.clientCaSecret -}}
{{- $files = append $files (dict "name" "client-ca" "secret" . "items" (dict "ca.crt" $.Values.tls.clientCaKey)) -}}
{{- end -}}
{{- with .Values.auth.tokensSecret -}}
{{- $files = append $files (dict "name" "tokens" "secret" . "items" (dict "tokens" $.Values.auth.tokensKey)) -}}
{{- end -}}
{{- with .Values.karmada.kubeconfigSecret -}}
{{- $files = append $files (dict "name" "kubeconfig" "secret" . "items" (dict "kubeconfig" $.Values.karmada.kubeconfigKey)) -}}
{{- end -}}
{{- toYaml (dict "files" $files) -}}
{{- end -}}

{{/* Volumes of the pod, and mounts of the container: whole directories, so that renewed Secrets arrive. */}}
{{- define "discovery.volumes" -}}
{{- range (include "discovery.files" . | fromYaml).files }}
- name: {{ .name }}
  secret:
    secretName: {{ .secret | quote }}
    items:
    {{- range $path, $key := .items }}
    {{- with $key }}
      - key: {{ . | quote }}
        path: {{ $path }}
    {{- end }}
    {{- end }}
{{- end }}
{{- if .Values.karmada.kubeconfigSecret }}
# Certificates within a kubeconfig are written to files for the TLS library.
- name: tmp
  emptyDir:
    medium: Memory
    sizeLimit: 16Mi
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "discovery.volumeMounts" -}}
{{- range (include "discovery.files" . | fromYaml).files }}
- name: {{ .name }}
  mountPath: /etc/discovery/{{ .name }}
  readOnly: true
{{- end }}
{{- if .Values.karmada.kubeconfigSecret }}
- name: tmp
  mountPath: /tmp
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The namespaces that are watched, each once, where it is not all of them: {"namespaces": […]}. */}}
{{- define "discovery.namespaces" -}}
{{- $namespaces := list -}}
{{- if and .Values.rbac.namespaced (include "discovery.watches" .) -}}
{{- $namespaces = .Values.rbac.namespaces | default (list .Release.Namespace) -}}
{{- with .Values.router.namespace }}{{ $namespaces = append $namespaces . }}{{ end -}}
{{- end -}}
{{- toYaml (dict "namespaces" (uniq $namespaces)) -}}
{{- end -}}

{{/* The variables of `discovery serve`, as the data of the ConfigMap. What is empty is left out: the program's default. */}}
{{- define "discovery.variables" -}}
{{- $found := dict -}}
{{- range $key, $value := .Values.config -}}
{{- $_ := set $found (snakecase $key) (kindIs "invalid" $value | ternary "" (include "discovery.number" $value)) -}}
{{- end -}}
{{- $_ := set $found "listen" (printf "%s:%s" (include "discovery.listenHost" .) (include "discovery.number" .Values.listen.port)) -}}
{{- if include "discovery.healthListen" . -}}
{{- $_ := set $found "health_listen" (printf "%s:%s" (include "discovery.listenHost" .) (include "discovery.number" .Values.healthListen.port)) -}}
{{- end -}}
{{- $_ := set $found "pool_discovery" .Values.poolDiscovery -}}
{{- $_ := set $found "registration_storage" .Values.registrationStorage -}}
{{- $routers := list -}}
{{- range .Values.router.static -}}
{{- $routers = append $routers (printf "%s=%s" .id .url) -}}
{{- end -}}
{{- $_ := set $found "router" (join " " $routers) -}}
{{- $_ := set $found "router_namespace" .Values.router.namespace -}}
{{- $_ := set $found "router_service" .Values.router.service -}}
{{- $_ := set $found "router_port_name" .Values.router.portName -}}
{{- range $key, $value := .Values.mcs -}}
{{- $_ := set $found (snakecase $key) $value -}}
{{- end -}}
{{- $_ := set $found "kube_context" (join " " .Values.karmada.contexts) -}}
{{- $_ := set $found "kube_namespace" (join " " (include "discovery.namespaces" . | fromYaml).namespaces) -}}
{{- $_ := set $found "redis_url" (include "discovery.redis.url" .) -}}
{{- $_ := set $found "redis_prefix" .Values.redis.prefix -}}
{{- $_ := set $found "redis_sentinel_user" .Values.redis.sentinel.user -}}
{{- $_ := set $found "dynamodb_table" .Values.dynamodb.table -}}
{{- $_ := set $found "dynamodb_region" .Values.dynamodb.region -}}
{{- $_ := set $found "dynamodb_endpoint_url" .Values.dynamodb.endpointUrl -}}
{{- $paths := dict "redis/password" "redis_password_path" "redis/ca.crt" "redis_tls_ca_path" "redis/tls.crt" "redis_tls_cert_path" "redis/tls.key" "redis_tls_key_path" "redis-sentinel/password" "redis_sentinel_password_path" "tls/tls.crt" "tls_cert_path" "tls/tls.key" "tls_key_path" "client-ca/ca.crt" "tls_client_ca_path" "tokens/tokens" "auth_tokens_path" "kubeconfig/kubeconfig" "kubeconfig" -}}
{{- range $file := (include "discovery.files" . | fromYaml).files -}}
{{- range $path, $key := $file.items -}}
{{- if $key -}}
{{- $_ := set $found (get $paths (printf "%s/%s" $file.name $path)) (printf "/etc/discovery/%s/%s" $file.name $path) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $name, $value := $found }}
{{- with $value }}
DISCOVERY_{{ upper $name }}: {{ . | quote }}
{{- end }}
{{- end }}
{{- end -}}
