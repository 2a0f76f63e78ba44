{{- define "loadline.selector" -}}
app.kubernetes.io/name: loadline
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "loadline.labels" -}}
{{ include "loadline.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end }}

{{- define "loadline.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "loadline.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "loadline.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{- define "loadline.secretVolume" -}}
- name: secrets
  secret:
    secretName: {{ .Values.secretName }}
    defaultMode: 0440
{{- end }}

{{/* Pods of a program beside the agents: root, component, args, config (name of a ConfigMap), checksum, env,
     port, grace, resources, account, token. */}}
{{- define "loadline.program" -}}
metadata:
  labels:
    {{- include "loadline.labels" . | nindent 4 }}
  annotations:
    checksum/config: {{ .checksum }}
spec:
  serviceAccountName: {{ .account }}
  automountServiceAccountToken: {{ .token }}
  enableServiceLinks: false
  {{- with .root.Values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .grace }}
  terminationGracePeriodSeconds: {{ . }}
  {{- end }}
  securityContext:
    {{- include "loadline.podSecurity" .root | nindent 4 }}
  containers:
    - name: {{ .container }}
      image: {{ include "loadline.image" .root }}
      imagePullPolicy: {{ .root.Values.image.pullPolicy }}
      args: {{ toJson .args }}
      {{- with .env }}
      env:
        {{- range $name, $value := . }}
        - { name: {{ $name }}, value: {{ $value | quote }} }
        {{- end }}
      {{- end }}
      {{- with .port }}
      ports:
        - name: {{ .name }}
          containerPort: {{ .number }}
      {{- if eq .name "grpc" }}
      # Works with TLS too; the kubelet speaks gRPC without TLS only.
      livenessProbe:
        tcpSocket: { port: grpc }
        periodSeconds: 10
        timeoutSeconds: 2
      {{- end }}
      {{- with .path }}
      readinessProbe:
        httpGet: { path: {{ . }}, port: http }
        periodSeconds: 5
        timeoutSeconds: 2
      {{- end }}
      {{- end }}
      resources:
        {{- toYaml .resources | nindent 8 }}
      securityContext:
        {{- include "loadline.containerSecurity" .root | nindent 8 }}
      volumeMounts:
        - { name: config, mountPath: /etc/loadline/config, readOnly: true }
        - { name: secrets, mountPath: /etc/loadline/secrets, readOnly: true }
  volumes:
    - name: config
      configMap:
        name: {{ .config }}
    {{- include "loadline.secretVolume" .root | nindent 4 }}
{{- end }}

{{- define "loadline.dns" -}}
- to:
    - namespaceSelector:
        matchLabels:
          kubernetes.io/metadata.name: kube-system
  ports:
    - { protocol: UDP, port: 53 }
    - { protocol: TCP, port: 53 }
{{- end }}

{{- define "loadline.toNats" -}}
- to:
    - namespaceSelector:
        matchLabels:
          kubernetes.io/metadata.name: {{ .Values.networkPolicy.nats.namespace }}
  ports:
    - { protocol: TCP, port: {{ .Values.networkPolicy.nats.port }} }
{{- end }}
