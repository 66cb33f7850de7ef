{{/* What the chart's own Redis is started with. */}}

{{/* Three quarters of its memory limit, so that a full Redis refuses what is new and is not killed; or nothing. */}}
{{- define "discovery.redis.maxmemory" -}}
{{- $limit := dig "limits" "memory" "" (.Values.redis.embedded.resources | default dict) | toString -}}
{{- if regexMatch "^[0-9]+[MG]i$" $limit -}}
{{- $mebibytes := mul (regexFind "^[0-9]+" $limit | int64) (hasSuffix "Gi" $limit | ternary 1024 1) -}}
{{- printf "maxmemory %dmb" (div (mul $mebibytes 3) 4) -}}
{{- end -}}
{{- end -}}

{{/* The files of its ConfigMap. */}}
{{- define "discovery.redis.files" -}}
start.sh: |
  {{- .Files.Get "files/redis-start.sh" | trim | nindent 2 }}
redis.conf: |
  port 6379
  dir /data
  # What is full refuses new pools; any other policy would throw registrations away before their time.
  maxmemory-policy noeviction
  {{- with include "discovery.redis.maxmemory" . }}
  {{ . }}
  {{- end }}
  save ""
  appendonly {{ .Values.redis.embedded.persistence.enabled | ternary "yes" "no" }}
{{- end -}}

{{/* A probe that runs no shell and knows no password: (dict "periodSeconds" 2 …). */}}
{{- define "discovery.redis.probe" -}}
exec:
  command: [redis-cli, -e, --no-auth-warning, --user, probe, --pass, none, ping]
{{ toYaml . }}
{{- end -}}
