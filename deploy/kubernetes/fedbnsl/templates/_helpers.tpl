{{/* The name of a half: release and role; "fedbnsl-site-north" for the release "fedbnsl". */}}
{{- define "fedbnsl.name" -}}
{{- if eq .role "site" -}}
{{ printf "%s-site-%s" .top.Release.Name .top.Values.site.name | trunc 52 | trimSuffix "-" }}
{{- else -}}
{{ printf "%s-coordinator" .top.Release.Name | trunc 52 | trimSuffix "-" }}
{{- end -}}
{{- end }}

{{- define "fedbnsl.selector" -}}
app.kubernetes.io/name: fedbnsl
app.kubernetes.io/instance: {{ .top.Release.Name }}
app.kubernetes.io/component: {{ .role }}
{{- end }}

{{- define "fedbnsl.labels" -}}
{{ include "fedbnsl.selector" . }}
app.kubernetes.io/version: {{ .top.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .top.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .top.Chart.Name .top.Chart.Version }}
{{- end }}

{{- define "fedbnsl.image" -}}
{{- $image := .half.image -}}
{{- if $image.digest -}}
{{ printf "%s@%s" $image.repository $image.digest | quote }}
{{- else -}}
{{ printf "%s:%s" $image.repository ($image.tag | default .top.Chart.AppVersion) | quote }}
{{- end -}}
{{- end }}

{{/* What no container of this chart may do. 10001 is the user of both images. */}}
{{- define "fedbnsl.confined" -}}
allowPrivilegeEscalation: false
privileged: false
readOnlyRootFilesystem: true
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
capabilities:
  drop: [ALL]
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{/* The part of a pod's specification that is the same for both halves. */}}
{{- define "fedbnsl.pod" -}}
serviceAccountName: {{ include "fedbnsl.name" . }}
automountServiceAccountToken: false
enableServiceLinks: false
terminationGracePeriodSeconds: {{ .half.terminationGracePeriodSeconds }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile:
    type: RuntimeDefault
{{- with .top.Values.imagePullSecrets }}
imagePullSecrets: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .half.nodeSelector }}
nodeSelector: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .half.tolerations }}
tolerations: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .half.affinity }}
affinity: {{ toYaml . | nindent 2 }}
{{- end }}
initContainers:
  # numba reads a cache of compiled kernels only where it could write, and the image's own cannot be written.
  - name: kernels
    image: {{ include "fedbnsl.image" . }}
    imagePullPolicy: {{ .half.image.pullPolicy }}
    command: [cp, -R, /var/cache/fedbnsl/., /kernels/]
    securityContext: {{ include "fedbnsl.confined" . | nindent 6 }}
    resources:
      requests: {cpu: 50m, memory: 32Mi}
      limits: {cpu: 500m, memory: 128Mi}
    volumeMounts:
      - {name: kernels, mountPath: /kernels}
{{- end }}

{{- define "fedbnsl.volumes" -}}
- name: kernels
  emptyDir: {sizeLimit: 256Mi}
- name: tmp
  emptyDir: {sizeLimit: {{ .tmp }}}
{{- if .half.metrics.enabled }}
- name: metrics-token
  secret: {secretName: {{ .half.metrics.tokenSecret }}, defaultMode: 0440, items: [{key: token, path: token}]}
{{- end }}
{{- if .half.web.enabled }}
- name: web-token
  secret: {secretName: {{ .half.web.tokenSecret }}, defaultMode: 0440, items: [{key: token, path: token}]}
{{- end }}
{{- if and .half.certificateSecret (or .half.metrics.enabled .half.web.enabled) }}
- name: certificate
  secret: {secretName: {{ .half.certificateSecret }}, defaultMode: 0440, items: [{key: tls.pem, path: tls.pem}]}
{{- end }}
{{- if .half.passphraseSecret }}
- name: passphrase
  secret: {secretName: {{ .half.passphraseSecret }}, defaultMode: 0440, items: [{key: passphrase, path: passphrase}]}
{{- end }}
{{- end }}

{{- define "fedbnsl.mounts" -}}
- {name: kernels, mountPath: /var/cache/fedbnsl}
- {name: tmp, mountPath: /tmp}
{{- if .half.metrics.enabled }}
- {name: metrics-token, mountPath: /secrets/metrics, readOnly: true}
{{- end }}
{{- if .half.web.enabled }}
- {name: web-token, mountPath: /secrets/web, readOnly: true}
{{- end }}
{{- if and .half.certificateSecret (or .half.metrics.enabled .half.web.enabled) }}
- {name: certificate, mountPath: /secrets/tls, readOnly: true}
{{- end }}
{{- if .half.passphraseSecret }}
- {name: passphrase, mountPath: /secrets/passphrase, readOnly: true}
{{- end }}
{{- end }}

{{- define "fedbnsl.claim" -}}
apiVersion: v1
kind: PersistentVolumeClaim
metadata:
  name: {{ .name }}
spec:
  accessModes: [ReadWriteOnce]
  {{- with .of.storageClass }}
  storageClassName: {{ . }}
  {{- end }}
  resources:
    requests: {storage: {{ .of.size }}}
{{- end }}
