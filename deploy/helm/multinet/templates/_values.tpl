{{- /* Each template changes an object by the values, and prints nothing. */}}

{{- define "multinet.place" }}
{{- $namespace := .root.Release.Namespace }}
{{- if .object.metadata.namespace }}{{ $_ := set .object.metadata "namespace" $namespace }}{{ end }}
{{- range .object.subjects }}{{ $_ := set . "namespace" $namespace }}{{ end }}
{{- range .object.webhooks }}{{ $_ := set .clientConfig.service "namespace" $namespace }}{{ end }}
{{- end }}

{{- /* Flags, those of the manifest first. A flag in the values replaces the manifest's, since most flags may occur only once. */}}
{{- define "multinet.args" }}
{{- $values := get .root.Values (trimPrefix "multinet-" .object.metadata.name) }}
{{- $given := dict }}
{{- range $values.args }}{{ $_ := set $given (first (splitList "=" .)) true }}{{ end }}
{{- $container := first .object.spec.template.spec.containers }}
{{- $args := list }}
{{- range $container.args }}
{{- if not (hasKey $given (first (splitList "=" .))) }}{{ $args = append $args . }}{{ end }}
{{- end }}
{{- with .root.Values.zone }}{{ $args = append $args (printf "--zone=%s" .) }}{{ end }}
{{- if ne .object.metadata.name "multinet-controller" }}
{{- $zones := .root.Values.vertexZones }}
{{- if and $zones (eq .object.metadata.name "multinet-numaflow") }}{{ $zones = list (first $zones) }}{{ end }}
{{- range $zones }}{{ $args = append $args (printf "--vertex-zone=%s" .) }}{{ end }}
{{- end }}
{{- $_ := set $container "args" (concat $args $values.args) }}
{{- end }}

{{- /* The DNS port is the first that the server listens on. Without root, only ports below 1024 need a permission. */}}
{{- define "multinet.listen" }}
{{- $pod := .object.spec.template.spec }}
{{- $container := first $pod.containers }}
{{- $dns := 0 }}
{{- $is_low := false }}
{{- range $container.args }}
{{- range ternary (splitList "," (trimPrefix "--listen=" .)) list (hasPrefix "--listen=" .) }}
{{- $port := int (regexFind "[0-9]+$" .) }}
{{- if lt $port 1024 }}{{ $is_low = true }}{{ end }}
{{- if and (not $dns) (or (hasPrefix "dns://" .) (not (contains "://" .))) }}{{ $dns = $port }}{{ end }}
{{- end }}
{{- end }}
{{- if $dns }}
{{- range $container.ports }}{{ if hasPrefix "dns" .name }}{{ $_ := set . "containerPort" $dns }}{{ end }}{{ end }}
{{- end }}
{{- if not $is_low }}
{{- $_ := unset $container.securityContext.capabilities "add" }}
{{- $_ := unset $pod.securityContext "sysctls" }}
{{- end }}
{{- end }}

{{- define "multinet.deployment" }}
{{- include "multinet.args" . }}
{{- if eq .object.metadata.name "multinet-dns" }}{{ include "multinet.listen" . }}{{ end }}
{{- $name := .object.metadata.name }}
{{- $image := .root.Values.image }}
{{- $values := get .root.Values (trimPrefix "multinet-" $name) }}
{{- $_ := set .object.spec "replicas" (int $values.replicas) }}
{{- $pod := .object.spec.template.spec }}
{{- $container := first $pod.containers }}
{{- $path := ternary $name (printf "%s/%s" $image.registry $name) (empty $image.registry) }}
{{- $_ := set $container "image" (printf "%s:%s" $path (default .root.Chart.AppVersion $image.tag)) }}
{{- $_ := set $container "imagePullPolicy" $image.pullPolicy }}
{{- with $values.resources }}{{ $_ := set $container "resources" . }}{{ end }}
{{- $_ := set $container "ports" (concat $container.ports $values.extraPorts) }}
{{- with $values.extraVolumeMounts }}{{ $_ := set $container "volumeMounts" (concat (default list $container.volumeMounts) .) }}{{ end }}
{{- with $values.extraVolumes }}{{ $_ := set $pod "volumes" (concat (default list $pod.volumes) .) }}{{ end }}
{{- with $image.pullSecrets }}{{ $_ := set $pod "imagePullSecrets" . }}{{ end }}
{{- $_ := mustMergeOverwrite $pod $values.pod }}
{{- end }}

{{- define "multinet.service" }}
{{- $values := .root.Values.dns.service }}
{{- with $values.clusterIP }}{{ $_ := set $.object.spec "clusterIP" . }}{{ end }}
{{- with $values.annotations }}{{ $_ := set $.object.metadata "annotations" . }}{{ end }}
{{- $ports := .object.spec.ports }}
{{- range .root.Values.dns.extraPorts }}
{{- $port := dict "name" .name "port" (int .containerPort) "targetPort" .name "protocol" (default "TCP" .protocol) }}
{{- $ports = append $ports $port }}
{{- end }}
{{- $_ := set .object.spec "ports" $ports }}
{{- end }}

{{- /* A JSON list of strings is also a CEL list. */}}
{{- define "multinet.accounts" }}
{{- range $variable := .object.spec.variables }}
{{- with get $.root.Values.networkStatusPolicy $variable.name }}{{ $_ := set $variable "expression" (toJson .) }}{{ end }}
{{- end }}
{{- end }}

{{- define "multinet.policy" }}
{{- $values := get .root.Values (trimPrefix "multinet-" .object.metadata.name) }}
{{- $ports := list }}
{{- range .root.Values.networkPolicy.apiServerPorts }}
{{- $ports = append $ports (dict "port" (int .) "protocol" "TCP") }}
{{- end }}
{{- $_ := set .object.spec "ingress" (concat .object.spec.ingress $values.extraIngress) }}
{{- $rule := dict "ports" $ports }}
{{- range .root.Values.networkPolicy.apiServerCidrs }}
{{- $_ := set $rule "to" (append (default list $rule.to) (dict "ipBlock" (dict "cidr" .))) }}
{{- end }}
{{- $_ := set .object.spec "egress" (concat (list $rule) (rest .object.spec.egress) $values.extraEgress) }}
{{- end }}
