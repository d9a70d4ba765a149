{{- define "doze.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion | replace "~" "-" }}
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
    name: {{ .root.Release.Name }}-settings
- name: certificates
  secret:
    secretName: {{ .secret }}
    defaultMode: 0400
{{- end }}

{{- define "doze.mounts" -}}
- name: settings
  mountPath: /etc/doze
  readOnly: true
- name: certificates
  mountPath: /etc/doze-fleet
  readOnly: true
{{- end }}
