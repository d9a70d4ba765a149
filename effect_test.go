package doze_test

import (
	"cmp"
	"encoding/json"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// effects are the tests that prove what members of requests do, with these members: as
// Schema.member of the OpenAPI descriptions, ?parameter of a query, a header, or a member
// of a body without a schema. A test may know it by the name of a field, which is behind =.
var effects = map[string]string{
	// Sandboxes.
	"internal/control/TestCreateAnswersAReadySandbox": "MetadataRequest.labels Runtime.image Env.secret",
	"internal/control/TestSleepAndWake":               "?tier",
	"internal/control/TestCreateMistakes":             "SandboxSpecRequest.vpc",
	"internal/control/TestCreateIfNotExist":           "MetadataRequest.name ?createIfNotExist",
	"internal/control/TestByExternalID":               "MetadataRequest.externalId",
	"internal/control/TestList":                       "?showTerminated ?externalId ?status ?limit ?cursor ?sort ?q ?anchor blaxel-version",
	"internal/store/TestSearch":                       "MetadataRequest.displayName",
	"internal/plane/TestLabelsFilterLists":            "CustomDomainMetadataRequest.labels ?labels",
	"internal/control/TestUpdate":                     "Env.name Env.value Runtime.memory",
	"test/e2e/TestStorage":                            "Runtime.storage",
	"internal/control/TestVariablesComeFromElsewhere": "Env.valueFrom.fieldRef.fieldPath Env.valueFrom.resourceFieldRef.divisor Env.valueFrom.resourceFieldRef.resource Env.valueFrom.secretKeyRef.key Env.valueFrom.secretKeyRef.name Env.valueFrom.secretKeyRef.optional SecretRequest.data",
	"internal/control/TestSecretsAreMasked":           "?show_secrets",
	"internal/control/TestEnabled":                    "SandboxSpecRequest.enabled",
	"internal/control/TestExtraArgs":                  "Runtime.extraArgs",
	"internal/control/TestExpiry":                     "Runtime.ttl Runtime.expires ExpirationPolicy.action ExpirationPolicy.type ExpirationPolicy.value",
	"internal/control/TestRetention":                  "Lifecycle.terminatedRetention",
	"internal/control/TestGraceDelaysNobodyElse":      "Runtime.terminationGracePeriodSeconds",
	"internal/control/TestRegionsOfResources":         "SandboxSpecRequest.region VolumeSpec.region DriveSpec.region",
	"internal/control/TestRegion":                     "?region",
	"internal/control/TestLogs":                       "?start ?end ?resourceType ?workloadIds",
	"internal/control/TestLogsOfProcesses":            "?order ?process ?search ?severity",

	// Networks.
	"internal/egress/TestDecide":                    "NetworkRequest.allowedDomains NetworkRequest.forbiddenDomains ProxyRequest.allowedDomains ProxyRequest.forbiddenDomains ProxyRequest.bypass",
	"internal/egress/TestSource":                    "Egress.mode EgressPolicy.destinations EgressPolicy.mode Firewall.rulesets",
	"internal/intercept/TestRules":                  "ProxyTargetRequest.destinations ProxyTargetRequest.headers",
	"internal/intercept/TestInjection":              "ProxyTargetRequest.body",
	"internal/intercept/TestReferences":             "ProxyTargetRequest.guestReferences",
	"internal/intercept/TestUnmasked":               "ProxyTargetRequest.maskResponses",
	"internal/control/TestRoutingSecrets":           "ProxyTargetRequest.secrets",
	"test/e2e/TestSubnets":                          "NetworkRequest.subnet",
	"internal/network/TestSandboxesLeaveByGateways": "Egress.gateway",
	"internal/network/TestNetworksLiveInEachOther":  "NetworkMetadataRequest.name NetworkSpecRequest.region",
	"internal/network/TestEgressIPsGetAddresses":    "NetworkSpecRequest.ipFamily",

	// Snapshots, forks, volumes, drives, images.
	"internal/control/TestSnapshots":       "SnapshotRequest.name SnapshotSourceRequest.name SnapshotSourceRequest.kind",
	"internal/control/TestForks":           "ForkRequest.targetName ForkRequest.targetType ForkRequest.snapshotId ForkRequest.memory ForkRequest.port ForkRequest.traffic ForkRequest.prefix ForkRequest.customDomain",
	"internal/control/TestVolumes":         "VolumeSpec.size VolumeAttachmentRequest.name VolumeAttachmentRequest.mountPath VolumeAttachmentRequest.readOnly VolumeAttachmentRequest.type VolumeAttachmentRequest.sizeMb",
	"internal/control/TestVolumeTemplates": "VolumeSpec.template VolumeTemplateSpecRequest.defaultSize ?upload ?version ?token",
	"TestDriveAllows":                      "DrivePermission.labels DrivePermission.mode DrivePermission.path",

	"test/e2e/TestDrives":                   "DriveMountRequest.driveName=Drive DriveMountRequest.mountPath DriveMountRequest.drivePath DriveMountRequest.readOnly DriveMountRequest.uidMap DriveMountRequest.gidMap",
	"internal/build/TestImageIsBuilt":       "BuildRequest.name BuildRequest.dockerfile BuildRequest.target BuildRequest.args BuildRequest.secrets BuildRequest.noCache",
	"internal/build/TestFollow":             "?follow",
	"internal/build/TestImagesByUpload":     "?skip-build",
	"internal/image/TestImagesOfAWorkspace": "ImageRequest.name ImageRequest.image ImageRequest.resourceType",
	"internal/image/TestImageCredentials":   "ShareRequest.targetWorkspace ?direction",

	// Nodes.
	"internal/roster/TestMove":  "MoveRequest.node",
	"internal/roster/TestToken": "NodeTokenRequest.ttl",

	// Previews, domains, schedules.
	"internal/preview/TestPreviewsAreMadeAndChanged":      "PreviewMetadataRequest.name PreviewSpecRequest.port PreviewSpecRequest.prefixUrl",
	"internal/preview/TestPreviewsOfPorts":                "Port.protocol Port.target",
	"internal/edge/TestPreviewsLetInWhoMay":               "PreviewSpecRequest.public",
	"internal/edge/TestPreviewHeaders":                    "PreviewSpecRequest.requestHeaders PreviewSpecRequest.responseHeaders",
	"internal/preview/TestCustomDomains":                  "PreviewSpecRequest.customDomain CustomDomainMetadataRequest.name CustomDomainSpecRequest.fallbackPreviewId",
	"internal/preview/TestDomainMistakes":                 "CustomDomainSpecRequest.domainType CustomDomainSpecRequest.region",
	"internal/preview/TestPreviewsEnd":                    "PreviewSpecRequest.ttl PreviewSpecRequest.expires",
	"internal/preview/TestPreviewTokens":                  "PreviewTokenMetadataRequest.name PreviewTokenSpecRequest.expiresAt",
	"internal/preview/TestAddressesOnADomainAreTakenOver": "?force",
	"internal/schedule/TestScheduleStartsProcesses": "ScheduleRequest.id ScheduleRequest.type ScheduleRequest.value ScheduleRequest.maxExecutions " +
		"ScheduleInputRequest.command ScheduleInputRequest.env ScheduleInputRequest.name ScheduleInputRequest.workingDir",
	"internal/schedule/TestSchedulesOfOneTime": "ScheduleInputRequest.keepAlive ScheduleInputRequest.timeout",
	"internal/schedule/TestScheduleLists":      "?sandbox ?schedule ?since ?until ?type",

	"internal/history/TestHistoryIsRead": "?series ?from ?to ?step",

	// Accounts, workspaces, login.
	"internal/tenancy/TestAPIKeysLiveAndDie":               "KeyRequest.expires_in",
	"internal/tenancy/TestKeysGiveNoMoreThanTheirMakerHas": "KeyRequest.scopes",
	"internal/tenancy/TestServiceAccounts":                 "AccountRequest.scopes",
	"internal/tenancy/TestWorkspacesAndMembers": "AcceptRequest.token AcceptRequest.password DeclineRequest.token InviteRequest.email InviteRequest.role RoleRequest.role " +
		"NameRequest.name WorkspaceRequest.name WorkspaceRequest.region ?countResources ?withReason x-blaxel-workspace ?workspace",
	"internal/tenancy/TestPasswordsChange":             "PasswordRequest.old_password PasswordRequest.password",
	"internal/tenancy/TestWorkspacesAreCreatedByRight": "RightsRequest.workspaceCreator",
	"internal/tenancy/TestQuotasAreTheOperators":       "QuotaRequest.quotas",
	"internal/tenancy/TestTheLogIsReadByAdmins":        "?action ?actor ?object ?outcome ?platform ?source",
	"internal/plane/TestRegisteredClients":             "ClientRequest.client_name ClientRequest.redirect_uris",
	"internal/oauth/TestAuthorizationCode": "?client_id ?redirect_uri ?state ?scope ?response_type ?code_challenge ?code_challenge_method " +
		"/oauth/authorize:client_id /oauth/authorize:redirect_uri /oauth/authorize:state /oauth/authorize:scope /oauth/authorize:response_type " +
		"/oauth/authorize:code_challenge /oauth/authorize:code_challenge_method /oauth/authorize:name /oauth/authorize:password /oauth/authorize:decision " +
		"/oauth/token:grant_type /oauth/token:code /oauth/token:code_verifier /oauth/token:redirect_uri /oauth/token:client_id",
	"internal/oauth/TestRefresh":           "/oauth/token:refresh_token /oauth/token:scope",
	"internal/oauth/TestClientCredentials": "/oauth/token:client_secret",
	"internal/oauth/TestDeviceFlow": "/oauth/token:device_code /login/device:client_id /login/device:scope ?user_code " +
		"/login/verify:user_code /login/verify:decision /login/verify:name /login/verify:password",
	"internal/oauth/TestRevoke": "/oauth/revoke:token",

	// Inside a sandbox.
	"internal/agent/file/TestWriteFile":            "FileRequest.content FileRequest.isDirectory FileRequest.permissions",
	"internal/agent/file/TestUpload":               "/filesystem/{path}:file /filesystem/{path}:permissions",
	"internal/agent/file/TestUploadInParts":        "UploadRequest.permissions UploadPartRequest.etag UploadPartRequest.partNumber /filesystem-multipart/{id}/part:file ?partNumber",
	"internal/agent/file/TestReadRaw":              "?download Range",
	"internal/agent/file/TestDelete":               "?recursive",
	"internal/agent/file/TestWatch":                "?ignore",
	"internal/agent/tree/TestWriteTree":            "TreeRequest.files",
	"internal/agent/search/TestFind":               "?patterns ?excludeHidden ?excludeDirs ?maxResults",
	"internal/agent/search/TestGrep":               "?query ?caseSensitive ?contextLines ?filePattern",
	"internal/agent/process/TestExecWaits":         "ProcessRequest.command ProcessRequest.env ProcessRequest.workingDir ProcessRequest.waitForCompletion ProcessRequest.timeout",
	"internal/agent/process/TestNamesAreUnique":    "ProcessRequest.name",
	"internal/agent/process/TestKeepAlive":         "ProcessRequest.keepAlive",
	"internal/agent/process/TestRestarts":          "ProcessRequest.restartOnFailure ProcessRequest.maxRestarts",
	"internal/agent/process/TestStdin":             "ProcessRequest.stdin",
	"internal/agent/process/TestWaitForPorts":      "ProcessRequest.waitForPorts",
	"internal/agent/port/TestMonitor":              "MonitorRequest.callback",
	"internal/agent/terminal/TestTerminal":         "?cols ?rows ?shell ?workingDir",
	"internal/agent/terminal/TestTerminalSessions": "?sessionId",
	"internal/agent/tunnel/TestTunnel":             "TunnelRequest.config",
	"cmd/doze-agent/TestExport": "ArchiveExportRequest.saveProcesses ArchiveExportRequest.async ArchiveExportRequest.dryRun ArchiveExportRequest.excludes ArchiveExportRequest.headers ArchiveExportRequest.imageMountPoint " +
		"ArchiveExportRequest.url ArchivePartsRequest.abortUrl ArchivePartsRequest.completeUrl ArchivePartsRequest.partSize ArchivePartsRequest.partUrls",
	"internal/agent/export/TestQuiesce": "ArchiveExportRequest.stopTimeoutSeconds",
}

// noEffect is the page with the members that do nothing.
const noEffect = "docs/api/ignored.md"

var (
	tableRow = regexp.MustCompile(`(?m)^\| (.*?) \| (recorded|not read) \| .+ \|$`)
	codeSpan = regexp.MustCompile("`([^`]+)`")
)

// plainWords has the names of JSON, of Go and of headers in one form.
func plainWords(s string) string {
	return strings.ToLower(strings.NewReplacer("_", "", "-", "").Replace(s))
}

// ignoredMembers are the members on that page, and whether they are recorded.
func ignoredMembers(t *testing.T) map[string]bool {
	t.Helper()
	page, err := os.ReadFile(noEffect)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]bool{}
	for _, row := range tableRow.FindAllStringSubmatch(string(page), -1) {
		for _, span := range codeSpan.FindAllStringSubmatch(row[1], -1) {
			if _, twice := all[span[1]]; twice {
				t.Errorf("%s has %s twice", noEffect, span[1])
			}
			all[span[1]] = row[2] == "recorded"
		}
	}
	return all
}

// TestEveryMemberHasAnEffect: for each member of a request, of the control API and of
// that inside a sandbox, a test proves what it does, or the docs say that it does
// nothing.
func TestEveryMemberHasAnEffect(t *testing.T) {
	t.Parallel()
	accounted := map[string]string{}
	for test, members := range effects {
		source := sourceOf(t, test)
		for member := range strings.FieldsSeq(members) {
			member, field, _ := strings.Cut(member, "=")
			if other, twice := accounted[member]; twice {
				t.Errorf("%s is a row of %s and of %s", member, other, test)
			}
			accounted[member] = test
			name := cmp.Or(field, member[strings.LastIndexAny(member, ".:?")+1:])
			if !strings.Contains(plainWords(source), plainWords(name)) {
				t.Errorf("%s does not know %s", test, member)
			}
		}
	}
	for member := range ignoredMembers(t) {
		if other, twice := accounted[member]; twice {
			t.Errorf("%s has an effect by %s, and none by %s", member, other, noEffect)
		}
		accounted[member] = noEffect
	}
	members := map[string]bool{}
	for _, file := range []string{"docs/openapi.json", "docs/openapi-sandbox.json"} {
		maps.Copy(members, requestMembers(t, file))
	}
	for _, member := range slices.Sorted(maps.Keys(members)) {
		if accounted[member] == "" {
			t.Errorf("%s: name the test that proves what it does in effects, or say in %s that it does nothing", member, noEffect)
		}
	}
	for member, where := range accounted {
		notRead := where == noEffect && !ignoredMembers(t)[member] // of it internal/plane knows
		if !members[member] && !notRead {
			t.Errorf("%s is a row of %s, and no request has it", member, where)
		}
	}
}

// sourceOf is the file that has a test, with its directory in front.
func sourceOf(t *testing.T, test string) string {
	t.Helper()
	dir, name := path.Split(test)
	files, err := os.ReadDir(path.Join(".", dir))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if !strings.HasSuffix(file.Name(), "_test.go") {
			continue
		}
		source, err := os.ReadFile(path.Join(dir, file.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(source), "\nfunc "+name+"(t *testing.T)") {
			return string(source)
		}
	}
	t.Errorf("there is no test %s", test)
	return ""
}

// schema is what this test needs of one in a description.
type schema struct {
	Ref        string             `json:"$ref"`
	Properties map[string]*schema `json:"properties"`
	Items      *schema            `json:"items"`
	Additional json.RawMessage    `json:"additionalProperties"` // a schema, or a boolean
	All        []*schema          `json:"allOf"`
	One        []*schema          `json:"oneOf"`
	Any        []*schema          `json:"anyOf"`
}

// description is what this test needs of one.
type description struct {
	Paths map[string]map[string]struct {
		Parameters []struct {
			Name string `json:"name"`
			In   string `json:"in"`
			Ref  string `json:"$ref"`
		} `json:"parameters"`
		Body struct {
			Content map[string]struct {
				Schema *schema `json:"schema"`
			} `json:"content"`
		} `json:"requestBody"`
	} `json:"paths"`
	Components struct {
		Schemas    map[string]*schema `json:"schemas"`
		Parameters map[string]struct {
			Name string `json:"name"`
			In   string `json:"in"`
		} `json:"parameters"`
	} `json:"components"`

	seen    map[string]bool
	members map[string]bool
}

// requestMembers are the members of all requests of a description: those that have no
// members of their own.
func requestMembers(t *testing.T, file string) map[string]bool {
	t.Helper()
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	d := description{seen: map[string]bool{}, members: map[string]bool{}}
	if err := json.Unmarshal(raw, &d); err != nil {
		t.Fatal(err)
	}
	for where, operations := range d.Paths {
		for _, o := range operations {
			for _, p := range o.Parameters {
				if known, ok := d.Components.Parameters[path.Base(p.Ref)]; ok {
					p.Name, p.In = known.Name, known.In
				}
				switch p.In {
				case "query":
					d.members["?"+p.Name] = true
				case "header":
					d.members[p.Name] = true
				}
			}
			for _, media := range o.Body.Content {
				d.visit(where+":", media.Schema)
			}
		}
	}
	if len(d.members) < 40 {
		t.Fatalf("%s has %d members", file, len(d.members))
	}
	return d.members
}

// visit adds the members of a schema, and reports whether it has any.
func (d *description) visit(prefix string, s *schema) bool {
	if s == nil {
		return false
	}
	if s.Ref != "" {
		name := path.Base(s.Ref)
		if !d.seen[name] {
			d.seen[name] = true
			d.visit(name+".", d.Components.Schemas[name])
		}
		target := d.Components.Schemas[name]
		return target != nil && len(target.Properties) > 0
	}
	has := len(s.Properties) > 0
	for name, member := range s.Properties {
		if !d.visit(prefix+name+".", member) {
			d.members[prefix+name] = true
		}
	}
	var additional *schema
	if err := json.Unmarshal(s.Additional, &additional); err != nil {
		additional = nil // it is a boolean
	}
	for _, part := range slices.Concat([]*schema{s.Items, additional}, s.All, s.One, s.Any) {
		has = d.visit(prefix, part) || has
	}
	return has
}
