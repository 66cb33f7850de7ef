{{/* How the two monitors scrape: (dict "context" $ "monitor" .Values.metrics.serviceMonitor "port" "http"). */}}
{{- define "discovery.endpoint" -}}
- port: {{ .port }}
  path: /metrics
  scheme: {{ include "discovery.probeScheme" .context }}
  {{- with .monitor.interval }}
  interval: {{ . }}
  {{- end }}
  {{- with .monitor.scrapeTimeout }}
  scrapeTimeout: {{ . }}
  {{- end }}
  {{- range $key := list "tlsConfig" "authorization" "relabelings" "metricRelabelings" }}
  {{- with get $.monitor $key }}
  {{ $key }}:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- end }}
{{- end -}}
