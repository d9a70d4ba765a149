package control

import (
	"reflect"
	"slices"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/api"
	"github.com/dozehq/doze/internal/openapi"
)

var size = openapi.Schema{Minimum: new(int(doze.VolumeMin)), Maximum: new(int(doze.VolumeMax)), Description: "in MiB"}

// schemas are the tables of what types do not show.
func schemas() openapi.Schemas {
	return openapi.Schemas{
		Types: map[reflect.Type]*openapi.Schema{
			reflect.TypeFor[doze.SnapshotStatus](): new(api.Words(string(doze.SnapshotPending), string(doze.SnapshotReady), string(doze.SnapshotFailed))),
			reflect.TypeFor[doze.RestoreState]():   new(api.Words(string(doze.RestoreExtracting), string(doze.RestoreSucceeded), string(doze.RestoreFailed))),
			reflect.TypeFor[doze.DriveMode]():      new(api.Words(string(doze.DriveRead), string(doze.DriveReadWrite))),
			reflect.TypeFor[doze.VersionStatus]():  new(api.Words(string(doze.VersionCreated), string(doze.VersionReady), string(doze.VersionFailed))),
		},
		Members: members(),
		Unset: []string{
			"archive", "entrypoint", "expiresIn", "nodeGeneration", "origin", "recovery", "versions", "SnapshotSource.deleted",
		},
		// Of what is replaced whole. What a caller may change in part has no
		// members that are needed each time.
		Needs: map[string][]string{
			"EgressPolicy":     {"destinations", "mode"},
			"Env":              {"name"},
			"ExpirationPolicy": {"action", "type", "value"},
			"ForkRequest":      {"targetName", "targetType"},
			"Port":             {"target"},
			"ProxyTarget":      {"destinations"},
			"VolumeAttachment": {"mountPath", "name"},
		},
	}
}

// members are the limits and forms that types do not show, from the constants
// that checks use.
func members() map[string]openapi.Schema {
	domains := openapi.Schema{MaxItems: doze.DomainsMax}
	entries := openapi.Schema{MaxProperties: doze.RuleEntriesMax}
	return map[string]openapi.Schema{
		"Observed.status":    statuses(),
		"Observed.state":     api.Words(doze.Running.State(), doze.Standby.State()),
		"Observed.expiresIn": api.Text("in seconds"),

		"Entrypoint.status":       api.Text("running, completed, failed, stopped or killed; disabled if the caller wants none; absent while nobody knows"),
		"Entrypoint.message":      api.Text("why it could not be started"),
		"Entrypoint.health":       api.Words("starting", "healthy", "unhealthy"),
		"Entrypoint.healthOutput": api.Text("the end of what the last check wrote"),
		"Entrypoint.ports":        api.Text("that the image exposes, as in 80/tcp"),

		"SandboxUsage.status": statuses(),
		"SandboxUsage.state":  api.Words(doze.Running.State(), doze.Standby.State()),
		"FeedSandbox.status":  statuses(),
		"FeedSandbox.state":   api.Words(doze.Running.State(), doze.Standby.State()),
		"Usage.countedSince":  api.Text("when the counters of wakes, sleeps and processor time began"),
		"Usage.tier":          api.Text("awake, paused, saved, swapped or disk; empty without a machine"),
		"Usage.sleeps":        api.Text("pauses"),

		"SandboxSpec.enabled":                   api.Text("false: it accepts no connections"),
		"SandboxSpec.volumes":                   {MaxItems: doze.AttachmentsMax},
		"Runtime.envs":                          {MaxItems: doze.EnvsMax},
		"Runtime.expires":                       api.Instant,
		"Runtime.extraArgs":                     {Values: new(api.Words("enabled", "disabled"))},
		"Runtime.image":                         {MaxLength: doze.ImageMax, Default: doze.ImageDefault},
		"Runtime.storage":                       {Minimum: new(int(doze.StorageMin)), Maximum: new(int(doze.StorageMax)), Description: "in MiB; files are in memory without it"},
		"Runtime.memory":                        {Minimum: new(int(doze.MemoryMin)), Maximum: new(int(doze.MemoryMax)), Default: doze.MemoryDefault, Description: "in MiB"},
		"Runtime.ports":                         {MaxItems: doze.PortsMax},
		"Runtime.terminationGracePeriodSeconds": api.Between(0, doze.GraceMax),
		"Runtime.ttl":                           api.Span,
		"Env.value":                             api.Text("masked in answers, if it is secret: sent back so, it is unchanged"),
		"Env.valueFrom":                         valueFrom(),
		"Port.target":                           api.Port,
		"Port.protocol":                         api.WordsOr("HTTP", "HTTP", "TCP", "UDP", "TLS"),

		"Lifecycle.expirationPolicies":  {MaxItems: doze.PoliciesMax},
		"Lifecycle.terminatedRetention": api.Span,
		"ExpirationPolicy.action":       api.Words("delete"),
		"ExpirationPolicy.type":         api.Words(doze.TTLIdle, doze.TTLMaxAge, doze.OnDate),
		"ExpirationPolicy.value":        api.Text("a duration such as 24h or, of the type date, a moment"),

		"VolumeAttachment.name":          api.Name,
		"VolumeAttachment.sizeMb":        size,
		"VolumeAttachment.type":          api.WordsOr(doze.VolumePersistent, doze.VolumePersistent, doze.VolumeEphemeral),
		"VolumeSpec.size":                size,
		"VolumeSpec.template":            api.Text("name or name:version"),
		"VolumeTemplateSpec.defaultSize": size,
		"VolumeTemplateSpec.description": api.Letters(doze.VolumeDescriptionMax),
		"VolumeTemplateState.status":     api.Words("created", "ready"),

		"DriveSpec.permissions":  {MaxItems: doze.DrivePermissionsMax},
		"DrivePermission.labels": api.Labels,
		"DrivePermission.mode":   {Default: doze.DriveReadWrite},
		"DriveState.s3Url":       api.Text("<endpoint>/<bucket>"),

		"Network.subnet":            api.Name,
		"Network.allowedDomains":    domains,
		"Network.forbiddenDomains":  domains,
		"Egress.mode":               api.Words(doze.EgressDedicated),
		"Egress.policies":           {MaxItems: doze.EgressPoliciesMax},
		"EgressPolicy.destinations": domains,
		"EgressPolicy.mode":         api.Words(doze.EgressDedicated, doze.EgressShared),
		"Firewall.rulesets":         {Items: new(api.Words(doze.RulesetDefault, doze.RulesetProxy, doze.RulesetDedicated))},
		"Proxy.allowedDomains":      domains,
		"Proxy.forbiddenDomains":    domains,
		"Proxy.bypass":              domains,
		"Proxy.routing":             {MaxItems: doze.RulesMax},
		"ProxyTarget.destinations":  domains,
		"ProxyTarget.headers":       entries,
		"ProxyTarget.body":          entries,
		"ProxyTarget.secrets":       entries,

		"SnapshotRequest.name":   api.Name,
		"SnapshotSource.kind":    api.Words(doze.KindSandbox),
		"ForkRequest.targetName": api.Name,
		"ForkRequest.targetType": api.Words(doze.KindSandbox),
	}
}

// valueFrom is [doze.ValueSource], which an answer has as the caller sent it.
func valueFrom() openapi.Schema {
	object := func(members map[string]*openapi.Schema, needed ...string) *openapi.Schema {
		return &openapi.Schema{Type: "object", Properties: members, Required: needed}
	}
	text := &openapi.Schema{Type: "string"}
	of := object(map[string]*openapi.Schema{
		"fieldRef":         object(map[string]*openapi.Schema{"apiVersion": text, "fieldPath": text}, "fieldPath"),
		"resourceFieldRef": object(map[string]*openapi.Schema{"containerName": text, "resource": text, "divisor": {}}, "resource"),
		"secretKeyRef":     object(map[string]*openapi.Schema{"name": text, "key": text, "optional": {Type: "boolean"}}, "name", "key"),
	})
	of.Description = "one of fieldRef, resourceFieldRef and secretKeyRef, as in Kubernetes"
	return *of
}

// statuses are all that a sandbox can have.
func statuses() openapi.Schema {
	var all []string
	for _, p := range doze.Phases() {
		if !slices.Contains(all, p.Status()) {
			all = append(all, p.Status())
		}
	}
	return api.Words(all...)
}
