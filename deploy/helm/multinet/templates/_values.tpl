{{- /* Each of these puts values into an object, and prints nothing. */}}

{{- define "multinet.place" }}
{{- $namespace := .root.Release.Namespace }}
{{- if .object.metadata.namespace }}{{ $_ := set .object.metadata "namespace" $namespace }}{{ end }}
{{- range .object.subjects }}{{ $_ := set . "namespace" $namespace }}{{ end }}
{{- end }}

{{- define "multinet.deployment" }}
{{- $name := .object.metadata.name }}
{{- $image := .root.Values.image }}
{{- $values := get .root.Values (trimPrefix "multinet-" $name) }}
{{- $_ := set .object.spec "replicas" (int $values.replicas) }}
{{- $pod := .object.spec.template.spec }}
{{- $container := first $pod.containers }}
{{- $path := ternary $name (printf "%s/%s" $image.registry $name) (empty $image.registry) }}
{{- $_ := set $container "image" (printf "%s:%s" $path (default .root.Chart.AppVersion $image.tag)) }}
{{- $_ := set $container "imagePullPolicy" $image.pullPolicy }}
{{- $zone := ternary list (list (printf "--zone=%s" .root.Values.zone)) (empty .root.Values.zone) }}
{{- $_ := set $container "args" (concat $container.args $zone $values.args) }}
{{- with $values.resources }}{{ $_ := set $container "resources" . }}{{ end }}
{{- with $image.pullSecrets }}{{ $_ := set $pod "imagePullSecrets" . }}{{ end }}
{{- $_ := mustMergeOverwrite $pod $values.pod }}
{{- end }}

{{- define "multinet.service" }}
{{- $values := .root.Values.dns.service }}
{{- with $values.clusterIP }}{{ $_ := set $.object.spec "clusterIP" . }}{{ end }}
{{- with $values.annotations }}{{ $_ := set $.object.metadata "annotations" . }}{{ end }}
{{- end }}

{{- define "multinet.policy" }}
{{- $ports := list }}
{{- range .root.Values.networkPolicy.apiServerPorts }}
{{- $ports = append $ports (dict "port" (int .) "protocol" "TCP") }}
{{- end }}
{{- $_ := set .object.spec "egress" (list (dict "ports" $ports)) }}
{{- end }}
