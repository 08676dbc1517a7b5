{{- define "longshore.labels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "longshore.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* [queues.…] of one pool. */}}
{{- define "longshore.queues" -}}
{{- range $queue, $of := . }}
[queues.{{ $queue }}]
{{- with $of.concurrency }}
concurrency = {{ . }}
{{- end }}
{{- with $of.aging }}
aging = {{ . | quote }}
{{- end }}
{{- with $of.max_waiting }}
max_waiting = {{ . }}
{{- end }}
{{- with $of.fair_by }}
fair_by = {{ . | quote }}
{{- end }}
{{- end }}
{{- end }}

{{/* The settings file of the component: the gateway has all queues, as it declares them and their bounds. */}}
{{- define "longshore.file" -}}
{{ with trim .root.Values.settings }}{{ . }}{{ "\n" }}{{ end -}}
[node]
{{- if eq .component "gateway" }}
gateway = true
shutdown_grace = "30s"
{{- else }}
shutdown_grace = "{{ .pool.shutdownGraceSeconds | default 30 }}s"
{{- end }}
{{- if eq .component "gateway" }}
{{- $queues := dict }}
{{- range .root.Values.pools }}{{ $queues = merge $queues (deepCopy .queues) }}{{ end }}
{{- include "longshore.queues" $queues }}
{{- else }}
{{- include "longshore.queues" .pool.queues }}
{{- end }}
{{- end }}

{{- define "longshore.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "longshore.url" -}}
{{ .Values.connection.url | default (printf "nats://%snats:4222" (.Values.nats.enabled | ternary (printf "%s-" .Release.Name) "")) }}
{{- end }}

{{- define "longshore.connection" -}}
env:
  - name: NATS_URL
    value: {{ include "longshore.url" . | quote }}
  # Records and events name the node: so they name the pod.
  - name: LONGSHORE_NODE__NAME
    valueFrom: {fieldRef: {fieldPath: metadata.name}}
{{- with .Values.connection.secret }}
envFrom:
  - secretRef: {name: {{ . | quote }}}
{{- end }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
volumeMounts:
  - name: settings
    mountPath: /etc/longshore/settings
    readOnly: true
{{- if .Values.connection.files }}
  - name: nats
    mountPath: /etc/longshore/nats
    readOnly: true
{{- end }}
{{- end }}

{{- define "longshore.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . | quote }}
{{- end }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  seccompProfile: {type: RuntimeDefault}
volumes:
  - name: settings
    configMap: {name: {{ printf "%s-%s" .root.Release.Name .component }}}
{{- with .root.Values.connection.files }}
  - name: nats
    secret: {secretName: {{ . | quote }}, defaultMode: 0440}
{{- end }}
{{- end }}
