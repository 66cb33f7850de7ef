{{/* Parts of the pod template. */}}

{{/* One probe: (dict "context" $ "name" "readinessProbe" "path" "/readyz"). */}}
{{- define "discovery.probe" -}}
{{ .name }}:
  httpGet:
    path: {{ .path }}
    port: {{ include "discovery.probePort" .context }}
    scheme: {{ include "discovery.probeScheme" .context | upper }}
  {{- range $key, $value := get .context.Values .name }}
  {{- if not (kindIs "invalid" $value) }}
  {{ $key }}: {{ include "discovery.number" $value }}
  {{- end }}
  {{- end }}
{{- end -}}

{{/* How pods spread: soft over nodes and zones, or as the user says, with this chart's pods where no selector is given. */}}
{{- define "discovery.spread" -}}
{{- $selector := dict "matchLabels" (include "discovery.selectorLabels" (dict "context" . "component" "server") | fromYaml) -}}
{{- $constraints := list -}}
{{- if kindIs "invalid" .Values.topologySpreadConstraints -}}
{{- range list "kubernetes.io/hostname" "topology.kubernetes.io/zone" -}}
{{- $constraints = append $constraints (dict "maxSkew" 1 "topologyKey" . "whenUnsatisfiable" "ScheduleAnyway" "matchLabelKeys" (list "pod-template-hash")) -}}
{{- end -}}
{{- else -}}
{{- $constraints = deepCopy .Values.topologySpreadConstraints -}}
{{- end -}}
{{- range $constraints -}}
{{- if not (hasKey . "labelSelector") }}{{ $_ := set . "labelSelector" $selector }}{{ end -}}
{{- end -}}
{{- with $constraints }}{{ toYaml . }}{{ end -}}
{{- end -}}

{{/* Labels of the pods: without the chart's version, so that a new chart alone starts no rollout. */}}
{{- define "discovery.podLabels" -}}
{{- $own := include "discovery.selectorLabels" (dict "context" . "component" "server") | fromYaml -}}
{{- include "discovery.map" (merge $own (deepCopy (.Values.podLabels | default dict)) (deepCopy (.Values.commonLabels | default dict))) -}}
{{- end -}}
