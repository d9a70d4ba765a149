package control

import (
	"encoding/json"
	"reflect"
	"slices"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/httpx"
	"github.com/dozehq/doze/internal/listing"
	"github.com/dozehq/doze/internal/openapi"
)

// parameters are all that callers may ask in a query, and the headers that they
// choose a workspace and a version with.
var parameters = map[string]openapi.Parameter{
	"q":                     query("q", "a part of the name", openapi.Schema{Type: "string", MaxLength: searchMax}),
	"limit":                 query("limit", "how many; more than the most counts as that", openapi.Schema{Type: "integer", Minimum: new(1)}),
	"cursor":                query("cursor", "the nextCursor of the page before", openapi.Schema{Type: "string"}),
	"anchor":                query("anchor", "end is the last page; it needs a sort by createdAt", words("start", "end")),
	"sort":                  query("sort", "the order", words(string(listing.NewestFirst), "createdAt:asc", "name:asc", "name:desc")),
	"status":                query("status", "a status, or several with commas", openapi.Schema{Type: "string"}),
	"externalId":            query("externalId", "those with this id", openapi.Schema{Type: "string", MaxLength: doze.ExternalIDMax, Pattern: doze.ExternalIDPattern}),
	flags[showTerminated]:   query(flags[showTerminated], "those that ended too, while their records are kept", boolean),
	flags[showSecrets]:      query(flags[showSecrets], "values as they are; it needs the scope admin", boolean),
	flags[createIfNotExist]: query(flags[createIfNotExist], "answer the one of this name, if there is one", boolean),
	flags[force]:            query(flags[force], "take the address from the preview that has it", boolean),
	flags[uploads]:          query(flags[uploads], "add a version, and answer where its files are to be put", boolean),
	"version":               query("version", "the name of the version", openapi.Schema{Type: "string"}),
	"token":                 query("token", "a part of the address that the upload was offered at", openapi.Schema{Type: "string"}),
	flags[countResources]:   query(flags[countResources], "count what is in the workspace", boolean),
	flags[withReason]:       query(flags[withReason], "answer an object, and not a boolean", boolean),
	"type":                  query("type", "those of one type, cron or at; anything else is any", openapi.Schema{Type: "string"}),
	"sandbox":               query("sandbox", "those of one sandbox", openapi.Schema{Type: "string"}),
	"schedule":              query("schedule", "those of one schedule", openapi.Schema{Type: "string"}),
	"direction":             query("direction", "those that came, or that went out", words("incoming", "outgoing")),
	"since":                 query("since", "from this moment on, inclusive", moment),
	"until":                 query("until", "before this moment", moment),
	"start":                 query("start", "from this moment on, inclusive", moment),
	"end":                   query("end", "before this moment", moment),
	"resourceType":          query("resourceType", "what the workloads are: sandbox, or left out", openapi.Schema{Type: "string"}),
	"workloadIds":           query("workloadIds", "the names of the workloads, with commas", openapi.Schema{Type: "string"}),
	"region":                query("region", "those of one region", openapi.Schema{Type: "string"}),
	"actor":                 query("actor", "lines of one user or service account, by its sub", openapi.Schema{Type: "string"}),
	"action":                query("action", "lines of one action, such as sandboxes.create", openapi.Schema{Type: "string"}),
	"object":                query("object", "lines about one object, by its name", openapi.Schema{Type: "string"}),
	"source":                query("source", "lines of requests from one address", openapi.Schema{Type: "string"}),
	"outcome":               query("outcome", "lines with one outcome", words(doze.AuditBegun, doze.AuditDone, doze.AuditFailed, doze.AuditDenied)),
	flags[ofPlatform]:       query(flags[ofPlatform], "lines of no workspace, such as failed logins; for operators", boolean),
	"workspace":             query("workspace", "the workspace to act in", openapi.Schema{Type: "string"}),

	"x-blaxel-workspace": {Name: "x-blaxel-workspace", In: "header", Description: "the same", Schema: &openapi.Schema{Type: "string"}},
	"blaxel-version": {
		Name: "blaxel-version", In: "header", Description: "the version of this interface: in the older one lists are bare arrays",
		Schema: new(wordsOr(bareLists, bareLists, bareLists+".preview", pagedLists, pagedLists+".preview")),
	},
}

var (
	boolean = openapi.Schema{Type: "boolean"}
	moment  = openapi.Schema{Type: "string", Description: "RFC 3339, or a date alone"}
	// span is what doze.ParseDuration reads.
	span = openapi.Schema{Pattern: "^([0-9]+[smhdw])?$", Description: "a duration such as 30s, 15m, 24h, 7d or 2w"}
	name = openapi.Schema{MaxLength: doze.NameMax, Pattern: doze.NamePattern}
	port = between(1, 1<<16-1)
	size = openapi.Schema{Minimum: new(int(doze.VolumeMin)), Maximum: new(int(doze.VolumeMax)), Description: "in MiB"}
)

func query(name, about string, is openapi.Schema) openapi.Parameter {
	return openapi.Parameter{Name: name, In: "query", Description: about, Schema: &is}
}

func words(all ...string) openapi.Schema { return openapi.Schema{Type: "string", Enum: all} }

func wordsOr(otherwise string, all ...string) openapi.Schema {
	return openapi.Schema{Type: "string", Enum: all, Default: otherwise}
}

func between(least, most int) openapi.Schema {
	return openapi.Schema{Minimum: &least, Maximum: &most}
}

func letters(most int) openapi.Schema { return openapi.Schema{MaxLength: most} }

func text(about string) openapi.Schema { return openapi.Schema{Description: about} }

// statuses are all that a sandbox can have.
func statuses() openapi.Schema {
	var all []string
	for p := doze.Pending; p <= doze.Failed; p++ {
		if !slices.Contains(all, p.Status()) {
			all = append(all, p.Status())
		}
	}
	return words(all...)
}

// newSchemas makes the schemas of what goes over the wire.
func newSchemas() *openapi.Schemas {
	return &openapi.Schemas{
		Names: map[reflect.Type]string{
			reflect.TypeFor[apiKey]():    "APIKey",
			reflect.TypeFor[errorBody](): "Error",
		},
		Types: map[reflect.Type]*openapi.Schema{
			reflect.TypeFor[doze.Time]():            {Type: "string", Format: "date-time"},
			reflect.TypeFor[json.RawMessage]():      {Type: "object"},
			reflect.TypeFor[httpx.None]():           {Type: "object"},
			reflect.TypeFor[doze.SnapshotStatus]():  new(words(string(doze.SnapshotPending), string(doze.SnapshotReady), string(doze.SnapshotFailed))),
			reflect.TypeFor[doze.ExecutionStatus](): new(words(string(doze.ExecutionSucceeded), string(doze.ExecutionFailed))),
			reflect.TypeFor[doze.RestoreState]():    new(words(string(doze.RestoreExtracting), string(doze.RestoreSucceeded), string(doze.RestoreFailed))),
			reflect.TypeFor[doze.DriveMode]():       new(words(string(doze.DriveRead), string(doze.DriveReadWrite))),
			reflect.TypeFor[doze.VersionStatus]():   new(words(string(doze.VersionCreated), string(doze.VersionReady), string(doze.VersionFailed))),
		},
		Members: members(),
		Unset: []string{
			"archive", "createdAt", "createdBy", "events", "expiresIn", "lastUsedAt", "nodeGeneration", "plan", "recovery", "state", "status",
			"updatedAt", "updatedBy", "url", "versions", "workspace",
			"CustomDomainMetadata.sharedFromWorkspace", "CustomDomainSpec.cnameRecords", "CustomDomainSpec.lastVerifiedAt",
			"CustomDomainSpec.subjectAlternativeNames", "CustomDomainSpec.txtRecords", "CustomDomainSpec.verificationError",
			"NetworkMetadata.gatewayName", "NetworkMetadata.vpcName", "NetworkSpec.publicIp",
			"PreviewMetadata.resourceName", "PreviewMetadata.resourceType", "PreviewSpec.region",
			"PreviewTokenMetadata.previewName", "PreviewTokenMetadata.resourceName", "PreviewTokenMetadata.resourceType",
			"PreviewTokenSpec.expired", "PreviewTokenSpec.token",
			"Schedule.sandbox", "SnapshotSource.deleted",
		},
		// Of what is replaced whole. What a caller may change in part has no
		// members that are needed each time.
		Needs: map[string][]string{
			"AcceptRequest":    {"token", "password"},
			"ClientRequest":    {"client_name", "redirect_uris"},
			"DeclineRequest":   {"token"},
			"EgressPolicy":     {"destinations", "mode"},
			"Env":              {"name"},
			"ExpirationPolicy": {"action", "type", "value"},
			"ForkRequest":      {"targetName", "targetType"},
			"ImageRequest":     {"name", "image"},
			"InviteRequest":    {"email"},
			"NameRequest":      {"name"},
			"PasswordRequest":  {"password"},
			"PolicyEntry":      {"name", "type"},
			"Port":             {"target"},
			"ProxyTarget":      {"destinations"},
			"ShareRequest":     {"targetWorkspace"},
			"VolumeAttachment": {"mountPath", "name"},
		},
	}
}

// members are the limits and forms that types do not show, from the constants
// that checks use.
func members() map[string]openapi.Schema {
	roles := words(doze.RoleAdmin, doze.RoleMember)
	password := openapi.Schema{MinLength: doze.PasswordMin, MaxLength: doze.PasswordMax}
	labels := openapi.Schema{MaxProperties: doze.LabelsMax}
	headers := openapi.Schema{MaxProperties: doze.PreviewHeadersMax}
	domains := openapi.Schema{MaxItems: doze.DomainsMax}
	entries := openapi.Schema{MaxProperties: doze.RuleEntriesMax}
	return map[string]openapi.Schema{
		"Metadata.name":        name,
		"Metadata.displayName": letters(doze.DisplayNameMax),
		"Metadata.externalId":  {MaxLength: doze.ExternalIDMax, Pattern: doze.ExternalIDPattern},
		"Metadata.labels":      labels,

		"Observed.status":    statuses(),
		"Observed.state":     words(doze.Running.State(), doze.Standby.State()),
		"Observed.expiresIn": text("in seconds"),

		"SandboxSpec.enabled":                   text("false: it accepts no connections"),
		"SandboxSpec.volumes":                   {MaxItems: doze.AttachmentsMax},
		"Runtime.envs":                          {MaxItems: doze.EnvsMax},
		"Runtime.expires":                       moment,
		"Runtime.extraArgs":                     {Values: new(words("enabled", "disabled"))},
		"Runtime.image":                         {MaxLength: doze.ImageMax, Default: doze.ImageDefault},
		"Runtime.memory":                        {Minimum: new(int(doze.MemoryMin)), Maximum: new(int(doze.MemoryMax)), Default: doze.MemoryDefault, Description: "in MiB"},
		"Runtime.ports":                         {MaxItems: doze.PortsMax},
		"Runtime.terminationGracePeriodSeconds": between(0, doze.GraceMax),
		"Runtime.ttl":                           span,
		"Env.value":                             text("masked in answers, if it is secret: sent back so, it is unchanged"),
		"Env.valueFrom":                         text("one of fieldRef, resourceFieldRef and secretKeyRef, as in Kubernetes"),
		"Port.target":                           port,
		"Port.protocol":                         wordsOr("HTTP", "HTTP", "TCP", "UDP", "TLS"),

		"Lifecycle.expirationPolicies":  {MaxItems: doze.PoliciesMax},
		"Lifecycle.terminatedRetention": span,
		"ExpirationPolicy.action":       words("delete"),
		"ExpirationPolicy.type":         words(doze.TTLIdle, doze.TTLMaxAge, doze.OnDate),
		"ExpirationPolicy.value":        text("a duration such as 24h or, of the type date, a moment"),

		"VolumeAttachment.name":          name,
		"VolumeAttachment.sizeMb":        size,
		"VolumeAttachment.type":          wordsOr(doze.VolumePersistent, doze.VolumePersistent, doze.VolumeEphemeral),
		"VolumeSpec.size":                size,
		"VolumeSpec.template":            text("name or name:version"),
		"VolumeTemplateSpec.defaultSize": size,
		"VolumeTemplateSpec.description": letters(doze.VolumeDescriptionMax),
		"VolumeTemplateState.status":     words("created", "ready"),

		"DriveSpec.permissions":  {MaxItems: doze.DrivePermissionsMax},
		"DrivePermission.labels": labels,
		"DrivePermission.mode":   {Default: doze.DriveReadWrite},
		"DriveState.s3Url":       text("<endpoint>/<bucket>"),

		"Network.subnet":            name,
		"Network.allowedDomains":    domains,
		"Network.forbiddenDomains":  domains,
		"Egress.mode":               words(doze.EgressDedicated),
		"Egress.policies":           {MaxItems: doze.EgressPoliciesMax},
		"EgressPolicy.destinations": domains,
		"EgressPolicy.mode":         words(doze.EgressDedicated, doze.EgressShared),
		"Firewall.rulesets":         {Items: new(words(doze.RulesetDefault, doze.RulesetProxy, doze.RulesetDedicated))},
		"Proxy.allowedDomains":      domains,
		"Proxy.forbiddenDomains":    domains,
		"Proxy.bypass":              domains,
		"Proxy.routing":             {MaxItems: doze.RulesMax},
		"ProxyTarget.destinations":  domains,
		"ProxyTarget.headers":       entries,
		"ProxyTarget.body":          entries,
		"ProxyTarget.secrets":       entries,

		"PreviewMetadata.displayName": letters(doze.DisplayNameMax),
		"PreviewMetadata.name":        name,
		"PreviewSpec.port":            port,
		"PreviewSpec.prefixUrl":       {MaxLength: doze.PrefixMax, Pattern: doze.NamePattern},
		"PreviewSpec.ttl":             span,
		"PreviewSpec.expires":         moment,
		"PreviewSpec.requestHeaders":  headers,
		"PreviewSpec.responseHeaders": headers,

		"Schedule.type":            words(doze.ScheduleCron, doze.ScheduleAt, doze.ScheduleSleep),
		"Schedule.value":           text("five fields of cron in UTC, a moment, or a duration from now: by the type"),
		"Schedule.maxExecutions":   {Minimum: new(0), Maximum: new(doze.ExecutionsMax), Default: doze.ExecutionsDefault},
		"ScheduleInput.command":    letters(doze.CommandMax),
		"ScheduleInput.name":       letters(doze.ProcessNameMax),
		"ScheduleInput.env":        {MaxProperties: doze.EnvsMax},
		"ScheduleInput.workingDir": letters(doze.WorkingDirMax),
		"ScheduleInput.timeout":    {Minimum: new(0), Maximum: new(doze.RunTimeoutMax), Default: doze.RunTimeoutDefault, Description: "in seconds; 0 is none"},

		"SnapshotRequest.name":   name,
		"SnapshotSource.kind":    words(doze.KindSandbox),
		"ForkRequest.targetName": name,
		"ForkRequest.targetType": words(doze.KindSandbox),
		"ImageRequest.image":     text("in a registry"),

		"CustomDomainMetadata.displayName": letters(doze.DisplayNameMax),
		"CustomDomainMetadata.labels":      labels,
		"CustomDomainMetadata.name":        letters(doze.DomainMax),
		"CustomDomainSpec.domainType":      words(doze.DomainPreviews),
		"CustomDomainSpec.status":          words(doze.DomainPending, doze.DomainVerified, doze.DomainFailed),
		"DomainShare.workspace":            text("or " + doze.DomainEverybody + ": all"),
		"ShareRequest.targetWorkspace":     text("of a domain also " + doze.DomainEverybody + ": all"),

		"NetworkMetadata.displayName": letters(doze.DisplayNameMax),
		"NetworkMetadata.name":        name,
		"NetworkSpec.ipFamily":        wordsOr(doze.IPv4, doze.IPv4, doze.IPv6),

		"PolicySpec.type":          words(doze.PolicyLocation, doze.PolicyFlavor, doze.PolicyMaxToken),
		"PolicySpec.locations":     {MaxItems: doze.PolicyEntriesMax},
		"PolicySpec.flavors":       {MaxItems: doze.PolicyEntriesMax},
		"PolicySpec.resourceTypes": {MaxItems: doze.PolicyEntriesMax},
		"PolicyEntry.name":         letters(doze.DisplayNameMax),

		"Secret.data": {MaxProperties: doze.SecretKeysMax, Description: "masked in answers: sent back so, a value is unchanged"},

		"KeyRequest.name":              letters(keyNameMax),
		"KeyRequest.expires_in":        span,
		"KeyRequest.scopes":            {MaxItems: scopesMax},
		"AccountRequest.name":          letters(doze.DisplayNameMax),
		"AccountRequest.description":   letters(descriptionMax),
		"AccountRequest.scopes":        {MaxItems: scopesMax},
		"ClientRequest.client_name":    letters(doze.DisplayNameMax),
		"WorkspaceRequest.name":        name,
		"WorkspaceRequest.displayName": letters(doze.DisplayNameMax),
		"WorkspaceRequest.labels":      labels,
		"NameRequest.name":             name,
		"InviteRequest.email":          letters(doze.EmailMax),
		"InviteRequest.role":           roles,
		"RoleRequest.role":             roles,
		"User.role":                    roles,
		"Invitation.role":              roles,
		"User.workspaceCreator":        text("may create workspaces; operators always may"),
		"AcceptRequest.password":       password,
		"AcceptRequest.given_name":     letters(doze.PersonMax),
		"AcceptRequest.family_name":    letters(doze.PersonMax),
		"PasswordRequest.password":     password,
		"APIKey.sub_type":              words(doze.SubUser, doze.SubServiceAccount),
	}
}
