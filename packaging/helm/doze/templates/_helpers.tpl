{{- define "doze.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion | replace "~" "-" | replace "+" "-" }}
{{- end }}

{{- define "doze.labels" -}}
app.kubernetes.io/name: doze
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | replace "~" "-" | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "doze.selector" -}}
app.kubernetes.io/name: doze
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "doze.control" -}}
https://{{ .Release.Name }}-control:7083
{{- end }}

{{- define "doze.volumes" -}}
- name: settings
  configMap:
    name: {{ .Release.Name }}-settings
{{- end }}

{{- define "doze.mounts" -}}
- name: settings
  mountPath: /etc/doze
  readOnly: true
{{- end }}

{{- /* The certificate of a role, in a secret. */ -}}
{{- define "doze.certificate" -}}
- name: certificates
  secret:
    secretName: {{ . }}
    defaultMode: 0400
{{- end }}

{{- define "doze.certificateMount" -}}
- name: certificates
  mountPath: /etc/doze-fleet
  readOnly: true
{{- end }}

{{- /* The bucket of checkpoints, for control and nodes. */ -}}
{{- define "doze.bucketArguments" -}}
- --remote={{ .url }}
- --remote-credentials=/etc/doze-bucket/credentials
{{- with .region }}
- --remote-region={{ . }}
{{- end }}
{{- end }}

{{- define "doze.bucket" -}}
- name: bucket
  secret:
    secretName: {{ .secret }}
    defaultMode: 0400
{{- end }}

{{- define "doze.bucketMount" -}}
- name: bucket
  mountPath: /etc/doze-bucket
  readOnly: true
{{- end }}

{{- define "doze.pull" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
{{- end }}

{{- /* How callers come in, for edges and for control, which makes addresses of it. */ -}}
{{- define "doze.public" -}}
- --listen=:7080
{{- with .Values.edge.publicURL }}
- --public-url={{ . }}
{{- end }}
{{- if not .Values.settings.domain }}
- --preview-listen=:7081
{{- with .Values.edge.publicURL }}
- --preview-url={{ (urlParse .).scheme }}://{{ regexReplaceAll ":[0-9]*$" (urlParse .).host "" }}:{{ $.Values.edge.service.previewPort }}
{{- end }}
{{- end }}
{{- if .Values.edge.tlsSecret }}
- --tls-cert=/etc/doze-tls/tls.crt
- --tls-key=/etc/doze-tls/tls.key
{{- end }}
{{- end }}

{{- /* A limit of memory, for the garbage collection of Go. */ -}}
{{- define "doze.heap" -}}
{{- if ((.limits).memory) }}
- name: GOMEMLIMIT
  valueFrom:
    resourceFieldRef:
      resource: limits.memory
{{- end }}
{{- end }}
