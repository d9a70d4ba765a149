package doze_test

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// conformance is the page with what proves the specification.
const conformance = "docs/conformance.md"

// proofs has each statement of docs/spec.md by its section and its first words, with the
// tests and transcripts that prove it. Where nothing can prove it, a reason is behind a dash.
const proofs = `
0 This document covers the whole interface of the service in one place | - introduction
0 Address placeholders | - the list follows
0 {base_url} | internal/plane/TestEveryRouteIsGuarded
0 {sandbox_url} | internal/edge/TestURL internal/edge/TestMatches

1 The service is a compute platform for running code in isolation | test/e2e/TestIsolation internal/control/TestByExternalID
1 Sandboxes are lightweight virtual machines for secure code execution | test/e2e/TestMemorySurvives test/e2e/TestAwake
1 VPC egress gateways and egress IPs route a sandbox's outbound traffic… | test/e2e/TestDedicatedAddress
1 Custom domains serve preview deployments at subdomains of a base… | internal/preview/TestCustomDomains internal/edge/TestDomains
1 Volume templates are pre-configured filesystem snapshots used to… | test/e2e/TestVolumeTemplate
1 Service accounts and their API keys give programmatic access | test/e2e/TestServiceAccountComesAndGoes
1 Each running sandbox exposes its own API for filesystem operations | test/e2e/TestAgent test/e2e/TestDrives

2 All timestamps are strings | test/contract/TestDescriptionTellsTheTruth internal/plane/TestClientsSendBackWhatTheyGot
2.1 name | internal/control/TestCreateMistakes internal/control/TestNameTaken internal/plane/TestMistakesAreReportedTogether
2.1 displayName | internal/store/TestSearch internal/plane/TestMistakesAreReportedTogether
2.1 externalId | internal/control/TestByExternalID
2.1 labels | internal/plane/TestLabelsFilterLists
2.1 plan | internal/control/TestCreateAnswersAReadySandbox internal/store/TestPlan
2.1 url | internal/control/TestCreateAnswersAReadySandbox
2.1 workspace | internal/control/TestCreateAnswersAReadySandbox
2.1 createdAt, updatedAt | internal/control/TestCreateAnswersAReadySandbox internal/control/TestUpdate
2.1 createdBy, updatedBy | internal/control/TestCreateAnswersAReadySandbox
2.1 Egress gateway and egress IP metadata use the same shape | internal/network/TestNetworksLiveInEachOther test/contract/testdata/networks.http
2.2 metadata | internal/control/TestCreateAnswersAReadySandbox
2.2 spec | internal/control/TestCreateAnswersAReadySandbox
2.2 events | internal/control/TestCreateAnswersAReadySandbox
2.2 expiresIn | internal/control/TestExpiry
2.2 lastUsedAt | internal/control/TestIdleTimeSurvivesARestart internal/control/TestCreateAnswersAReadySandbox
2.2 nodeGeneration | internal/control/TestCreateAnswersAReadySandbox
2.2 state | internal/control/TestReportsMoveTheRecord
2.2 status | internal/control/TestLifetimes TestEveryPhaseIsReachableAndEnds
2.3 enabled | internal/control/TestEnabled
2.3 lifecycle | internal/control/TestExpiry
2.3 network | internal/control/TestNetworkIsObeyed
2.3 region | internal/control/TestRegionsOfResources
2.3 runtime | internal/control/TestRuntimeReachesOrder
2.3 volumes | internal/control/TestVolumes
2.3 vpc | internal/control/TestCreateMistakes
2.4 envs | internal/control/TestVariablesComeFromElsewhere internal/control/TestUpdate
2.4 expires | internal/control/TestExpiry
2.4 extraArgs | internal/control/TestExtraArgs test/e2e/TestIPTables test/e2e/TestTun
2.4 image | internal/control/TestCreateMistakes internal/image/TestImagesOfAWorkspace test/e2e/TestImageOfAPrivateRegistry test/e2e/TestEntrypoint
2.4 memory | test/e2e/TestLimits internal/control/TestMemoryOfTheHostIsTheMost
2.4 ports | internal/control/TestUpdate
2.4 terminationGracePeriodSeconds | internal/control/TestGraceDelaysNobodyElse
2.4 ttl | internal/control/TestExpiry internal/control/TestEndIsShown
2.4 Env | internal/control/TestSecretsAreMasked
2.4 Port | internal/control/TestCreateMistakes
2.5 lifecycle.expirationPolicies | internal/control/TestExpiry
2.5 lifecycle.terminatedRetention | internal/control/TestRetention
2.5 expirationPolicy.action | internal/control/TestExpiry
2.5 expirationPolicy.type | internal/control/TestExpiry internal/control/TestKeepAliveIsNotIdle
2.5 expirationPolicy.value | internal/control/TestExpiry
2.6 subnet | test/e2e/TestSubnets
2.6 egress | test/e2e/TestDedicatedAddress
2.6 firewall | internal/egress/TestDecide internal/egress/TestSource
2.6 proxy | internal/egress/TestDecide
2.6 allowedDomains | TestNetworkRules internal/egress/TestDecide
2.6 forbiddenDomains | TestNetworkRules internal/egress/TestDecide
2.6 EgressConfig | - the list follows
2.6 EgressConfig: gateway | internal/network/TestSandboxesLeaveByGateways
2.6 EgressConfig: mode | internal/egress/TestSource
2.6 EgressConfig: policies | internal/egress/TestSource test/e2e/TestDedicatedAddress
2.6 EgressConfig: EgressPolicy fields | TestNetworkValidate internal/egress/TestSource
2.6 FirewallConfig | internal/egress/TestDecide internal/egress/TestSource TestNetworkValidate
2.6 ProxyConfig | - the list follows
2.6 ProxyConfig: allowedDomains | internal/egress/TestDecide TestDomainPattern
2.6 ProxyConfig: forbiddenDomains | internal/egress/TestDecide TestDomainPattern
2.6 ProxyConfig: bypass | internal/egress/TestDecide test/e2e/TestEgress
2.6 ProxyConfig: routing | test/e2e/TestRouting
2.6 ProxyTarget | - the list follows
2.6 ProxyTarget: destinations | internal/intercept/TestRules TestDestinationRequests
2.6 ProxyTarget: headers | internal/intercept/TestInjection
2.6 ProxyTarget: body | internal/intercept/TestBodies
2.6 ProxyTarget: secrets | internal/control/TestRoutingSecrets TestSecretsAreWriteOnly
2.6 ProxyTarget: Values in headers and body may contain a reference of the form… | internal/intercept/TestRules TestParseTemplate
2.7 mountPath | internal/control/TestVolumes test/e2e/TestVolumes
2.7 name | internal/control/TestVolumes internal/control/TestVolumeOfAnotherRegion
2.7 readOnly | test/e2e/TestVolumes
2.7 sizeMb | internal/control/TestVolumeMistakes internal/control/TestVolumes
2.7 type | internal/control/TestVolumes
2.8 All fields are strings | test/contract/TestDescriptionTellsTheTruth internal/control/TestCreateAnswersAReadySandbox
2.9 The values are DELETING | TestEveryPhaseIsReachableAndEnds internal/control/TestSandboxIsBuilt internal/build/TestImageIsBuilt test/contract/TestDescriptionTellsTheTruth
2.10 An egress gateway manages outbound traffic routing within a VPC | internal/network/TestEgressIPsGetAddresses
2.10 metadata | internal/network/TestNetworksLiveInEachOther
2.10 spec.region | internal/network/TestNetworksLiveInEachOther
2.10 Capacity configuration fields of the spec | - not shown
2.10 events | test/contract/testdata/networks.http
2.11 An egress IP is an individual address allocated from a gateway for… | internal/network/TestEgressIPsGetAddresses
2.11 metadata | test/contract/testdata/networks.http
2.11 spec.ipFamily | internal/network/TestEgressIPsGetAddresses
2.11 spec.publicIp | internal/network/TestEgressIPsGetAddresses
2.11 events | test/contract/testdata/networks.http
2.12 A custom domain is a base domain used to serve preview deployments | internal/edge/TestCustomDomainsAreMatchedByHost
2.12 metadata | internal/preview/TestCustomDomains
2.12 spec.cnameRecords | internal/preview/TestCustomDomains test/contract/testdata/domains.http
2.12 The allowed value sets of domainType and status | - not shown
2.13 A volume template is a pre-configured filesystem snapshot used to… | test/e2e/TestVolumeTemplate
2.13 metadata | test/contract/testdata/volumes.http
2.13 spec.defaultSize | internal/control/TestVolumeTemplates
2.13 state.lastVersionUploadedAt | internal/control/TestVolumeTemplates test/contract/testdata/volumes.http
2.13 versions is an array of objects with bucket | test/contract/testdata/volumes.http
2.14 Fields | internal/tenancy/TestServiceAccounts test/contract/testdata/accounts.http
2.15 name | internal/agent/file/TestList
2.15 files | internal/agent/file/TestList
2.15 subdirectories | internal/agent/file/TestList

3 Sandbox state values | test/e2e/TestAwake internal/control/TestRetention
3 Deployment status values are listed in section 2.9 | TestEveryPhaseIsReachableAndEnds internal/control/TestSandboxIsBuilt internal/control/TestRebuild
3 Transitions | TestTransitionsAreDeterministic TestStateDiagramIsCurrent
3 Lookup rule | internal/control/TestByExternalID

4 All bodies are JSON | test/contract/TestTranscripts test/contract/TestEveryRouteHasTranscripts
4.1 GET /sandboxes/by-external-id/{externalId} | internal/control/TestByExternalID
4.1 POST /vpcs/{vpcName}/egressgateways | internal/network/TestNetworksLiveInEachOther
4.1 DELETE /vpcs/{vpcName}/egressgateways/{gatewayName}/ips/{ipName} | internal/network/TestNetworksLiveInEachOther test/contract/testdata/networks.http
4.1 POST /customdomains/{domainName}/verify | internal/preview/TestCustomDomains
4.1 GET /volume_templates | internal/control/TestVolumeTemplates
4.1 DELETE /service_accounts/{clientId} | internal/tenancy/TestServiceAccounts
4.1 DELETE /service_accounts/{clientId}/api_keys/{apiKeyId} | internal/tenancy/TestServiceAccounts
4.1 GET by external identifier | - the list follows
4.1 GET by external identifier: 401 invalid or missing credentials | internal/plane/TestEveryRouteIsGuarded
4.1 GET by external identifier: 403 insufficient permissions to view sandboxes | internal/plane/TestEveryRouteIsGuarded
4.1 GET by external identifier: 404 no active sandbox with this external identifier | internal/control/TestByExternalID
4.1 GET by external identifier: 500 internal server error | TestKindsHaveNamesAndStatuses
4.1 Error status codes for the other control endpoints | - not shown
4.2 These endpoints are served by a sandbox at… | internal/edge/TestURL
4.2 PUT /filesystem/tree/{path} | internal/agent/tree/TestWriteTree
4.2 DELETE /process/{identifier} | internal/agent/process/TestStopAndKill
4.2 DELETE /drives/mount/{mountPath} | test/e2e/TestDrives test/contract/testdata/drives.http
4.2 Error bodies on sandbox endpoints have the shape {error | internal/agent/mistake/TestAllMistakes

5 The control API accepts either of two schemes on every endpoint | internal/plane/TestEveryRouteIsGuarded
5 OAuth 2.0 with JWT tokens | internal/oauth/TestAuthorizationCode internal/oauth/TestClientCredentials internal/access/TestTokens
5 A long-lived API key sent as a bearer token | internal/tenancy/TestAPIKeysLiveAndDie
5 The sandbox API takes a bearer token in the form Authorization | internal/edge/TestWhoMayEnterWhat
5 Scopes | internal/access/TestScopesAreThoseOfTheSpecification internal/access/TestRolesBoundScopes
5 agents, applications, customdomains, functions, jobs, models, policies | internal/access/TestScopesAreThoseOfTheSpecification
5 sandboxes | internal/access/TestScopesAreThoseOfTheSpecification
5 volumes | internal/access/TestScopesAreThoseOfTheSpecification
5 volumeTemplates | internal/access/TestScopesAreThoseOfTheSpecification
5 workspaces | internal/access/TestScopesAreThoseOfTheSpecification
5 apiKey | internal/access/TestScopesAreThoseOfTheSpecification
5 integrations | internal/access/TestScopesAreThoseOfTheSpecification
5 templates | internal/access/TestScopesAreThoseOfTheSpecification
5 configurations, invitations, locations, mcphub, sandboxhub | internal/access/TestScopesAreThoseOfTheSpecification
5 The required scope for GET /sandboxes/by-external-id/{externalId} is… | internal/plane/TestEveryRouteIsGuarded internal/plane/TestRoutesAreDocumented
5 The default security requirement of the control API is OAuth 2.0 with… | internal/plane/TestDescriptionIsComplete
5 The lifetime of tokens and the way to obtain service account… | - not shown

6 Every sandbox | internal/control/TestCreateAnswersAReadySandbox test/contract/testdata/networks.http
6 Which operation produces which event type | - not shown
6 Pushed notifications or webhooks | - not shown

7 The control API error body | - the list follows
7 error | internal/plane/TestMistakesAreReportedTogether TestErrorsAreDocumented
7 code | internal/plane/TestNothingIsIgnored TestKindsHaveNamesAndStatuses
7 message | test/contract/testdata/errors.http
7 The sandbox API error body is {error | internal/agent/mistake/TestAllMistakes
7 Status-to-condition mapping that is stated | internal/plane/TestEveryRouteIsGuarded
7 The full list of error values | - not shown

8 metadata.name | internal/plane/TestNumbersHaveLimits internal/control/TestCreateMistakes
8 metadata.displayName | internal/plane/TestMistakesAreReportedTogether internal/plane/TestNumbersHaveLimits
8 metadata.externalId | internal/control/TestCreateMistakes
8 runtime.memory | test/e2e/TestLimits
8 runtime.terminationGracePeriodSeconds | internal/control/TestGraceThatIsChanged
8 lifecycle.terminatedRetention | internal/control/TestRetention
8 Duration units (ttl) | internal/control/TestExpiry
8 Standby resume time | - measured, see [performance](performance.md)
8 Rate limits | - not shown

9 The control API address carries the version segment v0 | internal/plane/TestDescription
9 Sandboxes report nodeGeneration of mk3.0 or mk3.1 | internal/control/TestExtraArgs
9 Some sandbox network fields are deprecated in favour of proxy fields | TestNetworkRules
9 Deprecation and compatibility policy | - not shown
`

// statement is one row of a table, one item of a list or one paragraph of the
// specification.
type statement struct{ section, label string }

var sectionHeading = regexp.MustCompile(`^#+ (\d+(?:\.\d+)?)\.? `)

// reader collects the statements of a page.
type reader struct {
	all               []statement
	section           string
	paragraph, within string // within is the paragraph that introduces a list
	table             bool   // the head of a table is over
}

// line reads the next line.
func (r *reader) line(line string) {
	switch {
	case strings.HasPrefix(line, "|---"):
		r.table = true
	case strings.HasPrefix(line, "|"):
		if r.table {
			cells := strings.Split(strings.ReplaceAll(line, "`", ""), " | ")
			label := strings.TrimPrefix(cells[0], "| ")
			if strings.HasPrefix(cells[1], "/") {
				label += " " + cells[1]
			}
			r.all = append(r.all, statement{r.section, label})
		}
	case strings.HasPrefix(line, "#"):
		r.end("")
		if found := sectionHeading.FindStringSubmatch(line); found != nil {
			r.section = found[1]
		}
		r.within = ""
	case line == "":
		r.end("")
	case strings.HasPrefix(line, "- "), strings.HasPrefix(line, "1. "), strings.HasPrefix(line, "2. "):
		r.end("")
		r.paragraph = line[2:]
		r.end(r.within)
	default:
		r.paragraph = strings.TrimSpace(r.paragraph + " " + line)
	}
	r.table = r.table && strings.HasPrefix(line, "|")
}

// end adds the paragraph that was read, in a list that another one introduces.
func (r *reader) end(within string) {
	if r.paragraph == "" {
		return
	}
	label := labelOf(r.paragraph)
	if within == "" && r.section != "0" && r.section != "5" {
		r.within = ""
		if strings.HasSuffix(r.paragraph, ":") {
			r.within = label
		}
	}
	if within != "" {
		label = within + ": " + label
	}
	r.all = append(r.all, statement{r.section, label})
	r.paragraph = ""
}

// labelOf is the beginning of a paragraph, which tells it from the others.
func labelOf(paragraph string) string {
	const most = 70
	s := strings.TrimSpace(strings.ReplaceAll(paragraph, "`", ""))
	for _, stop := range []string{" (", ": ", ". ", ", "} {
		if before, _, found := strings.Cut(s, stop); found && len(before) > 2 {
			s = before
		}
	}
	s = strings.TrimRight(s, ".:")
	if len(s) > most {
		s = s[:strings.LastIndex(s[:most], " ")] + "…"
	}
	return s
}

// TestConformance: each statement of the specification has the tests that prove it, all
// of which exist, and the page with them is current.
func TestConformance(t *testing.T) {
	t.Parallel()
	spec, err := os.ReadFile("docs/spec.md")
	if err != nil {
		t.Fatal(err)
	}
	r := reader{section: "0"}
	for line := range strings.Lines(string(spec)) {
		r.line(strings.TrimSpace(line))
	}
	r.end("")
	var rows [][2]string
	for line := range strings.Lines(proofs) {
		if statement, proof, found := strings.Cut(strings.TrimSpace(line), " | "); found {
			rows = append(rows, [2]string{statement, proof})
		}
	}
	if len(r.all) < 160 {
		t.Errorf("the specification has %d statements", len(r.all))
	}
	for i, s := range r.all {
		want := s.section + " " + s.label
		if i >= len(rows) || rows[i][0] != want {
			t.Fatalf("proofs has no row for %q at its place", want)
		}
	}
	if len(rows) > len(r.all) {
		t.Errorf("%q is no statement of the specification", rows[len(r.all)][0])
	}
	var page strings.Builder
	page.WriteString("# Conformance\n\nWhat proves each statement of the [specification](spec.md), by its section and its first words. " +
		"`go test . -update` writes this page, from a table in `conformance_test.go`.\n\n| § | Statement | Proved by |\n|---|---|---|\n")
	for i, s := range r.all {
		fmt.Fprintf(&page, "| %s | %s | %s |\n", s.section, strings.NewReplacer("{", "`{", "}", "}`").Replace(s.label), proofOf(t, s, rows[i][1]))
	}
	if *update {
		if err := os.WriteFile(conformance, []byte(page.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(conformance); err != nil || string(got) != page.String() {
		t.Errorf("%s is stale, %v: run go test . -update", conformance, err)
	}
}

// identifier is the name of a member.
var identifier = regexp.MustCompile(`^[a-z][A-Za-z.]*$`)

// proofOf is a proof as the page has it. Each test must exist, and one of them must name
// the member that a statement is about.
func proofOf(t *testing.T, s statement, proof string) string {
	t.Helper()
	if reason, none := strings.CutPrefix(proof, "- "); none {
		return reason
	}
	var shown []string
	var source string
	for test := range strings.FieldsSeq(proof) {
		if strings.HasSuffix(test, ".http") {
			text, err := os.ReadFile(test)
			if err != nil {
				t.Errorf("%s %s: %v", s.section, s.label, err)
			}
			source += string(text)
		} else {
			source += sourceOf(t, test)
		}
		shown = append(shown, "`"+test+"`")
	}
	_, label, nested := strings.Cut(s.label, ": ")
	if !nested {
		label = s.label
	}
	if name := label[strings.LastIndex(label, ".")+1:]; identifier.MatchString(label) && s.section[0] == '2' && !strings.Contains(plainWords(source), plainWords(name)) {
		t.Errorf("%s %s: none of %s names it", s.section, s.label, proof)
	}
	return strings.Join(slices.Compact(shown), ", ")
}
