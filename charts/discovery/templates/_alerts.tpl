{{/*
The groups of files/alerts.yaml: its words between double underscores filled in, alerts that are switched off left out, and
each alert with where its section of the runbook is. What Prometheus itself fills in, such as {{ $labels.pod }}, is not
looked at.
*/}}
{{- define "discovery.alerts" -}}
{{- $rule := .Values.metrics.prometheusRule -}}
{{- $text := .Files.Get "files/alerts.yaml" -}}
{{- $text = replace "__selector__" (include "discovery.alertSelector" .) $text -}}
{{- $text = replace "__by__" (join ", " $rule.groupBy) $text -}}
{{- $text = replace "__replicas__" (include "discovery.fewestReplicas" .) $text -}}
{{- range $name, $value := $rule.thresholds -}}
{{- $text = replace (printf "__%s__" $name) (include "discovery.number" $value) $text -}}
{{- end -}}
{{- $groups := list -}}
{{- range $group := (fromYaml $text).groups -}}
{{- $kept := list -}}
{{- range $alert := $group.rules -}}
{{- if not (has $alert.alert ($rule.disabled | default list)) -}}
{{- $_ := set $alert "labels" (merge (deepCopy ($rule.alertLabels | default dict)) $alert.labels) -}}
{{- $_ := set $alert.annotations "runbook_url" (printf "%s#%s" $rule.runbookUrl (lower $alert.alert)) -}}
{{- $kept = append $kept $alert -}}
{{- end -}}
{{- end -}}
{{- with $kept -}}
{{- $groups = append $groups (dict "name" $group.name "rules" .) -}}
{{- end -}}
{{- end -}}
{{- toYaml $groups -}}
{{- end -}}

{{/* Which series are those of this release: as the chart's own monitor labels them, or as the values say. */}}
{{- define "discovery.alertSelector" -}}
{{- $name := include "discovery.fullname" . -}}
{{- $metrics := .Values.metrics -}}
{{- if $metrics.prometheusRule.selector -}}
{{- $metrics.prometheusRule.selector -}}
{{- else if $metrics.podMonitor.enabled -}}
namespace="{{ .Release.Namespace }}", job="{{ $metrics.podMonitor.namespace | default .Release.Namespace }}/{{ $name }}"
{{- else if $metrics.serviceMonitor.enabled -}}
namespace="{{ .Release.Namespace }}", job="{{ include "discovery.healthListen" . | eq "true" | ternary (include "discovery.nameWith" (dict "context" . "suffix" "metrics")) $name }}"
{{- else -}}
namespace="{{ .Release.Namespace }}"
{{- end -}}
{{- end -}}

{{/* The names of the chart's alerts, for rules about values. */}}
{{- define "discovery.alertNames" -}}
{{- regexFindAll "alert: [A-Za-z]+" (.Files.Get "files/alerts.yaml") -1 | join "," | replace "alert: " "" -}}
{{- end -}}
