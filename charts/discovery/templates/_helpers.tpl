{{/* Names, labels and derived facts. Everything here takes the root context unless it says otherwise. */}}

{{- define "discovery.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "discovery.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- $name := include "discovery.name" . -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The full name with a suffix, within `limit` characters (63 if left out): (dict "context" $ "suffix" "redis" "limit" 52). */}}
{{- define "discovery.nameWith" -}}
{{- $name := include "discovery.fullname" .context -}}
{{- $room := sub (.limit | default 63 | int) (len .suffix | add1) | int -}}
{{- if gt (len $name) $room -}}
{{- /* What is cut off is told apart by a hash, or two releases would share an object. */ -}}
{{- $name = printf "%s-%s" ($name | trunc (sub $room 9 | int) | trimSuffix "-") (sha256sum $name | trunc 8) -}}
{{- end -}}
{{- printf "%s-%s" $name .suffix -}}
{{- end -}}

{{/* A map of the user's as YAML without its nulls, which take away what a default or a platform would set. Takes the map. */}}
{{- define "discovery.map" -}}
{{- $map := deepCopy (. | default dict) -}}
{{- include "discovery.prune" $map -}}
{{- with $map }}{{ toYaml . }}{{ end -}}
{{- end -}}

{{- define "discovery.prune" -}}
{{- range $key, $value := . -}}
{{- if kindIs "invalid" $value -}}
{{- $_ := unset $ $key -}}
{{- else if kindIs "map" $value -}}
{{- include "discovery.prune" $value -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Labels that select; they never change, so nothing of the user's is among them. (dict "context" $ "component" "server"). */}}
{{- define "discovery.selectorLabels" -}}
app.kubernetes.io/name: {{ include "discovery.name" .context | quote }}
app.kubernetes.io/instance: {{ .context.Release.Name | quote }}
app.kubernetes.io/component: {{ .component | quote }}
{{- end -}}

{{/* All labels of an object; `extra` is a map of its own. (dict "context" $ "component" "server" "extra" .Values.service.labels). */}}
{{- define "discovery.labels" -}}
{{- $own := include "discovery.selectorLabels" . | fromYaml -}}
{{- $_ := set $own "helm.sh/chart" (printf "%s-%s" .context.Chart.Name .context.Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-") -}}
{{- $_ := set $own "app.kubernetes.io/version" (.context.Chart.AppVersion | toString | replace "+" "_" | trunc 63) -}}
{{- $_ := set $own "app.kubernetes.io/managed-by" .context.Release.Service -}}
{{- include "discovery.map" (merge $own (deepCopy (.extra | default dict)) (deepCopy (.context.Values.commonLabels | default dict))) -}}
{{- end -}}

{{/* The whole `annotations:` block of an object, or nothing. (dict "context" $ "extra" .Values.service.annotations). */}}
{{- define "discovery.annotations" -}}
{{- with include "discovery.map" (merge (deepCopy (.extra | default dict)) (deepCopy (.context.Values.commonAnnotations | default dict))) -}}
annotations:
  {{- . | nindent 2 }}
{{- end -}}
{{- end -}}

{{/* An image's name: (dict "context" $ "image" .Values.image "tag" .Chart.AppVersion). */}}
{{- define "discovery.imageOf" -}}
{{- $registry := (.context.Values.global | default dict).imageRegistry | default .image.registry -}}
{{- with $registry }}{{ trimSuffix "/" . }}/{{ end -}}
{{- .image.repository -}}
{{- if .image.digest }}@{{ .image.digest }}{{ else }}:{{ include "discovery.number" (.image.tag | default .tag) }}{{ end -}}
{{- end -}}

{{- define "discovery.image" -}}
{{- include "discovery.imageOf" (dict "context" . "image" .Values.image "tag" .Chart.AppVersion) -}}
{{- end -}}

{{/* The whole `imagePullSecrets:` block, or nothing: names of the chart and of its parent, as text or as {name: …}. */}}
{{- define "discovery.imagePullSecrets" -}}
{{- $names := list -}}
{{- range concat ((.Values.global | default dict).imagePullSecrets | default list) (.Values.imagePullSecrets | default list) -}}
{{- $names = append $names (kindIs "map" . | ternary (get (kindIs "map" . | ternary . dict) "name") .) -}}
{{- end -}}
{{- with $names | uniq -}}
imagePullSecrets:
{{- range . }}
  - name: {{ . | quote }}
{{- end }}
{{- end -}}
{{- end -}}

{{- define "discovery.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "discovery.fullname" .) -}}
{{- else -}}
{{- .Values.serviceAccount.name | default "default" -}}
{{- end -}}
{{- end -}}

{{/* A number as plain digits: in a values file 1048576 is a float, which would print as 1.048576e+06. Takes the number. */}}
{{- define "discovery.number" -}}
{{- if kindIs "float64" . -}}
{{- if eq . (floor .) -}}
{{- int64 . -}}
{{- else -}}
{{- printf "%.6f" . | regexFind "^-?[0-9]+\\.[0-9]*[1-9]|^-?[0-9]+" -}}
{{- end -}}
{{- else -}}
{{- . | toString -}}
{{- end -}}
{{- end -}}

{{/* "true" where EndpointSlices are watched. */}}
{{- define "discovery.watches" -}}
{{- if has .Values.poolDiscovery (list "mcs" "karmada") }}true{{ end -}}
{{- end -}}

{{/* "true" where the pod's own token is used: it is mounted, and has rights, only there. */}}
{{- define "discovery.usesToken" -}}
{{- if and (include "discovery.watches" .) (not .Values.karmada.kubeconfigSecret) }}true{{ end -}}
{{- end -}}

{{/* "true" where the chart brings its own Redis. */}}
{{- define "discovery.redis.embedded" -}}
{{- $asked := .Values.redis.embedded.enabled -}}
{{- if and (eq .Values.registrationStorage "redis") (not .Values.redis.url) (or (kindIs "invalid" $asked) $asked) }}true{{ end -}}
{{- end -}}

{{/* Name of all objects of that Redis; room is left for the hash that a StatefulSet adds in a label. */}}
{{- define "discovery.redis.name" -}}
{{- include "discovery.nameWith" (dict "context" . "suffix" "redis" "limit" 52) -}}
{{- end -}}

{{/* Secret with the password of Redis, the chart's own or yours; empty is none. */}}
{{- define "discovery.redis.secretName" -}}
{{- if include "discovery.redis.embedded" . -}}
{{- .Values.redis.embedded.existingSecret | default (include "discovery.redis.name" .) -}}
{{- else if eq .Values.registrationStorage "redis" -}}
{{- .Values.redis.existingSecret -}}
{{- end -}}
{{- end -}}

{{/* Key of the password in it; empty is no password. The chart's own Redis always has one. */}}
{{- define "discovery.redis.passwordKey" -}}
{{- if include "discovery.redis.embedded" . -}}
{{- .Values.redis.existingSecretPasswordKey | default "password" -}}
{{- else -}}
{{- .Values.redis.existingSecretPasswordKey -}}
{{- end -}}
{{- end -}}

{{/* URL of Redis, without a password. */}}
{{- define "discovery.redis.url" -}}
{{- if include "discovery.redis.embedded" . -}}
redis://discovery@{{ include "discovery.redis.name" . }}:6379/0
{{- else if eq .Values.registrationStorage "redis" -}}
{{- .Values.redis.url -}}
{{- end -}}
{{- end -}}

{{/* "true" where a second port serves probes and metrics. */}}
{{- define "discovery.healthListen" -}}
{{- $asked := .Values.healthListen.enabled -}}
{{- if kindIs "invalid" $asked -}}
{{- if .Values.tls.clientCaSecret }}true{{ end -}}
{{- else if $asked }}true{{ end -}}
{{- end -}}

{{/* "https" or "http", of the service's own port. */}}
{{- define "discovery.scheme" -}}
{{- .Values.tls.enabled | ternary "https" "http" -}}
{{- end -}}

{{/* Base URL of the service within the cluster. */}}
{{- define "discovery.url" -}}
{{ include "discovery.scheme" . }}://{{ include "discovery.fullname" . }}.{{ .Release.Namespace }}.svc:{{ include "discovery.number" .Values.service.port }}
{{- end -}}
