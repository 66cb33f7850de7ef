{{/* What the service has to reach, for its NetworkPolicy. */}}

{{/* Ports of Redis as a list in YAML: those of the URL, and of servers that Sentinels name. */}}
{{- define "discovery.redisPorts" -}}
{{- $ports := list -}}
{{- if .Values.networkPolicy.egress.redisPorts -}}
{{- range .Values.networkPolicy.egress.redisPorts }}{{ $ports = append $ports (include "discovery.number" .) }}{{ end -}}
{{- else if not (hasPrefix "unix:" .Values.redis.url) -}}
{{- $sentinel := contains "+sentinel://" .Values.redis.url -}}
{{- $hosts := .Values.redis.url | regexFind "://[^/?]*" | trimPrefix "://" | splitList "@" | last -}}
{{- range splitList "," $hosts -}}
{{- $ports = append $ports (regexFind ":[0-9]+$" . | trimPrefix ":" | default ($sentinel | ternary "26379" "6379")) -}}
{{- end -}}
{{- if $sentinel }}{{ $ports = append $ports "6379" }}{{ end -}}
{{- end -}}
{{- toYaml ($ports | uniq) -}}
{{- end -}}

{{/* One rule out: (dict "to" list "ports" list). Without peers it is everyone, on these ports alone. */}}
{{- define "discovery.egressRule" -}}
- ports:
    {{- range .ports }}
    - port: {{ include "discovery.number" . }}
      protocol: TCP
    {{- end }}
  {{- with .to }}
  to:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}

{{/* Where nodes of AWS hand out credentials: addresses that lead no further than the node. */}}
{{- define "discovery.awsNodePeers" -}}
{{- range list "169.254.170.23/32" "169.254.169.254/32" "fd00:ec2::23/128" "fd00:ec2::254/128" }}
- ipBlock:
    cidr: {{ . }}
{{- end }}
{{- end -}}

{{/* Ports of DynamoDB and of AWS's own services for credentials. */}}
{{- define "discovery.awsPorts" -}}
{{- $endpoint := .Values.dynamodb.endpointUrl | default "" -}}
{{- $port := regexFind "^https?://[^/]*:[0-9]+" $endpoint | regexFind "[0-9]+$" -}}
{{- $plain := hasPrefix "http://" $endpoint | ternary "80" "443" -}}
{{- toYaml (list "443" ($port | default $plain) | uniq) -}}
{{- end -}}
