package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze"
)

// ruledJSON is a sandbox that has rules of each kind.
const ruledJSON = `{"metadata":{"name":"ruled","labels":{"k":"v"}},"spec":{"runtime":{"image":"base"},"vpc":"lab","network":{` +
	`"subnet":"backend","egress":{"gateway":"office","policies":[{"destinations":["bank.test","192.0.2.0/24"],"mode":"dedicated"}]},` +
	`"firewall":{"rulesets":["proxy"]},"proxy":{"allowedDomains":["a.test","b.test"],"bypass":["c.test"],` +
	`"routing":[{"destinations":["a.test","b.test"],"headers":{"Authorization":"{{SECRET:k}}"},"body":{"user":"me"}}]}}},"status":"DEPLOYED"}`

// networkAnswer is what a server has of VPCs, gateways and egress IPs.
func networkAnswer(call string, body []byte) []byte {
	list := func(all ...string) []byte { return []byte("[" + strings.Join(all, ",") + "]") }
	const office = `{"metadata":{"name":"office","vpcName":"default"},"status":"DEPLOYED"}`
	switch call {
	case "GET /v0/vpcs":
		return list(`{"metadata":{"name":"default"},"status":"DEPLOYED"}`, `{"metadata":{"name":"lab"},"status":"DEPLOYED"}`)
	case "GET /v0/egressgateways":
		return list(office)
	case "GET /v0/egressgateways/usage":
		return []byte(`{"office":["ruled","web"]}`)
	case "GET /v0/egressips":
		return list(
			`{"metadata":{"name":"office-1","vpcName":"default","gatewayName":"office"},"spec":{"publicIp":"203.0.113.1"},"status":"DEPLOYED","events":[{"message":"it has an address"}]}`,
			`{"metadata":{"name":"office-2","vpcName":"default","gatewayName":"office"},"spec":{},"status":"DEPLOYING","events":[{"message":"it waits"}]}`,
		)
	}
	if len(body) == 0 { // a delete
		return []byte("{}")
	}
	return body
}

func TestNetworkCommands(t *testing.T) {
	t.Parallel()
	const (
		get     = "GET /v0/sandboxes/ruled"
		egress  = `"egress":{"gateway":"office","policies":[{"destinations":["bank.test","192.0.2.0/24"],"mode":"dedicated"}]}`
		routing = `"routing":[{"destinations":["a.test","b.test"],"headers":{"Authorization":"{{SECRET:k}}"},"body":{"user":"me"}}]`
		rows    = "RULE VALUE\nvpc lab\nsubnet backend\n"
		leave   = "gateway office\ndedicated bank.test,192.0.2.0/24\nshared everything else\nruleset proxy\n"
		route   = "route a.test,b.test: body user, header Authorization\n"
		none    = "RULE VALUE\nvpc default\nsubnet default\n"
	)
	// put is the whole of a change: nothing but where the sandbox is and its network.
	put := func(network string) string {
		return `PUT /v0/sandboxes/ruled {"metadata":{"name":"ruled"},"spec":{"runtime":{},"vpc":"lab","network":{"subnet":"backend",` + network + `}}}`
	}
	const firewall = `,"firewall":{"rulesets":["proxy"]},`
	runCommands(t, map[string]commandCase{
		"get":          {"network|get|ruled", 0, rows + "allow a.test\nallow b.test\nbypass c.test\n" + route + leave, "", []string{get}},
		"get, none":    {"network|get|web", 0, none, "", nil},
		"get, as JSON": {"network|get|ruled|-o|json", 0, "", "", []string{get}},
		"list, as JSON": {
			"network|ls|-o|json", 0, "", "", []string{"GET /v0/sandboxes?limit=200", "GET /v0/sandboxes?cursor=c&limit=200"},
		},
		"set a list": {
			"network|set|ruled|--allow|d.test|--allow|e.test", 0, rows + "allow d.test\nallow e.test\nbypass c.test\n" + route + leave, "",
			[]string{get, put(egress + firewall + `"proxy":{"bypass":["c.test"],"allowedDomains":["d.test","e.test"],` + routing + `}`)},
		},
		"empty a list": {
			"network|set|ruled|--allow||--bypass||--ruleset|", 0, rows + route + strings.TrimSuffix(leave, "ruleset proxy\n"), "",
			[]string{get, put(egress + `,"proxy":{` + routing + `}`)},
		},
		"set where it leaves": {
			"network|set|ruled|--gateway|home|--shared|f.test", 0,
			rows + "allow a.test\nallow b.test\nbypass c.test\n" + route + "gateway home\nshared f.test\ndedicated everything else\nruleset proxy\n", "",
			[]string{get, put(`"egress":{"gateway":"home","mode":"dedicated","policies":[{"destinations":["f.test"],"mode":"shared"}]}` + firewall +
				`"proxy":{"bypass":["c.test"],"allowedDomains":["a.test","b.test"],` + routing + `}`)},
		},
		"leave as all do": {
			"network|set|ruled|--gateway|", 0, rows + "allow a.test\nallow b.test\nbypass c.test\n" + route + "ruleset proxy\n", "",
			[]string{get, put(firewall[1:] + `"proxy":{"bypass":["c.test"],"allowedDomains":["a.test","b.test"],` + routing + `}`)},
		},
		"set a place": {
			"network|set|web|--vpc|lab|--subnet|backend", 0, none, "",
			[]string{`PUT /v0/sandboxes/web {"metadata":{"name":"web"},"spec":{"runtime":{},"vpc":"lab","network":{"subnet":"backend"}}}`},
		},
		"set nothing": {"network|set|ruled", 2, "", "doze: nothing to change: use a flag such as --allow, or doze network clear to remove all rules; see --help\n", nil},
		"both ways":   {"network|set|web|--gateway|g|--dedicated|a.test|--shared|b.test", 2, "", "doze: choose one of --dedicated and --shared: what it does not name takes the other way; see --help\n", nil},
		"no gateway":  {"network|set|web|--gateway||--dedicated|a.test", 2, "", "doze: --dedicated and --shared need a gateway; see --help\n", nil},
		"clear":       {"network|clear|ruled", 0, "ruled\n", "", []string{`PUT /v0/sandboxes/ruled {"metadata":{"name":"ruled"},"spec":{"runtime":{},"network":{}}}`}},
		"route, the first": {
			"network|route|web|api.test|-H|Authorization: Bearer {{SECRET:HERE}}|--body|user=a=b|--secret|HERE|--secret|k=v", 0, none, "",
			[]string{`PUT /v0/sandboxes/web {"metadata":{"name":"web"},"spec":{"runtime":{},"network":{"proxy":{"routing":[` +
				`{"destinations":["api.test"],"headers":{"Authorization":"Bearer {{SECRET:HERE}}"},"body":{"user":"a=b"},"secrets":{"HERE":"local","k":"v"}}]}}}}`},
		},
		"route, in the place of another": {
			"network|route|ruled|b.test|a.test|--header|A: {{SECRET:k}}", 0, rows + "allow a.test\nallow b.test\nbypass c.test\nroute a.test,b.test: header A\n" + leave, "",
			[]string{get, put(egress + firewall + `"proxy":{"bypass":["c.test"],"allowedDomains":["a.test","b.test"],"routing":[{"destinations":["a.test","b.test"],"headers":{"A":"{{SECRET:k}}"}}]}`)},
		},
		"route, with options": {
			"network|route|ruled|GET:https://c.test/v1|!c.test/v1/admin|--secret|k=v|--guest-references|--mask-responses=false", 0,
			rows + "allow a.test\nallow b.test\nbypass c.test\n" + route + "route GET:https://c.test/v1,!c.test/v1/admin: guest references, no masks\n" + leave, "",
			[]string{get, put(egress + firewall + `"proxy":{"bypass":["c.test"],"allowedDomains":["a.test","b.test"],` + routing[:len(routing)-1] + `,` +
				`{"destinations":["GET:https://c.test/v1","!c.test/v1/admin"],"guestReferences":true,"maskResponses":false,"secrets":{"k":"v"}}]}`)},
		},
		"route, nothing":   {"network|route|web|a.test", 2, "", "doze: say what requests get with --header or --body; doze network unroute takes a rule away; see --help\n", nil},
		"route, no header": {"network|route|web|a.test|-H|A=b", 2, "", "doze: --header must be 'Name: value', not \"A=b\"; see --help\n", nil},
		"route, no secret": {
			"network|route|web|a.test|-H|A: b|--secret|NOT_SET", 2, "",
			"doze: --secret must be NAME=value, or NAME of a variable that is set here, not \"NOT_SET\"; see --help\n", nil,
		},
		"unroute": {
			"network|unroute|ruled|b.test|a.test", 0, rows + "allow a.test\nallow b.test\nbypass c.test\n" + leave, "",
			[]string{get, put(egress + firewall + `"proxy":{"bypass":["c.test"],"allowedDomains":["a.test","b.test"]}`)},
		},
		"unroute, unknown": {"network|unroute|ruled|a.test", 1, "", "doze: no rule has exactly these domains: list the rules with doze network get\n", []string{get}},

		"VPCs":         {"vpc|ls", 0, "NAME CREATED\ndefault -\nlab -\n", "", []string{"GET /v0/vpcs"}},
		"make a VPC":   {"vpc|create|lab", 0, "NAME CREATED\nlab -\n", "", []string{`POST /v0/vpcs {"metadata":{"name":"lab"},"spec":{}}`}},
		"delete a VPC": {"vpc|rm|lab", 0, "lab\n", "", []string{"DELETE /v0/vpcs/lab"}},

		"gateways": {"gateway|ls", 0, "NAME VPC USED BY CREATED\noffice default ruled,web -\n", "", []string{"GET /v0/egressgateways", "GET /v0/egressgateways/usage"}},
		"make a gateway": {
			"gateway|create|office|--vpc|lab", 0, "NAME VPC USED BY CREATED\noffice - - -\n", "",
			[]string{`POST /v0/vpcs/lab/egressgateways {"metadata":{"name":"office"},"spec":{"region":"auto"}}`},
		},
		"delete a gateway": {
			"gateway|rm|office|home", 1, "office\n", "doze: home: no such gateway: \"home\"; list them with doze gateway ls, or create it with doze gateway create\n",
			[]string{"GET /v0/egressgateways", "DELETE /v0/vpcs/default/egressgateways/office", "GET /v0/egressgateways"},
		},

		"IPs": {
			"ip|ls", 0, "NAME GATEWAY ADDRESS STATUS PROBLEM\noffice-1 office 203.0.113.1 DEPLOYED -\noffice-2 office - DEPLOYING it waits\n", "",
			[]string{"GET /v0/egressips"},
		},
		"take an IP": {
			"ip|create|office|office-3", 0, "NAME GATEWAY ADDRESS STATUS PROBLEM\noffice-3 - - - -\n", "",
			[]string{"GET /v0/egressgateways", `POST /v0/vpcs/default/egressgateways/office/ips {"metadata":{"name":"office-3"},"spec":{}}`},
		},
		"take an IP, no gateway": {
			"ip|create|home|ip", 1, "", "doze: no such gateway: \"home\"; list them with doze gateway ls, or create it with doze gateway create\n", []string{"GET /v0/egressgateways"},
		},
		"return an IP": {
			"ip|rm|office-2", 0, "office-2\n", "",
			[]string{"GET /v0/egressips", "DELETE /v0/vpcs/default/egressgateways/office/ips/office-2"},
		},
	})
}

// TestNetworkOfAFile: what one sandbox has, another one gets.
func TestNetworkOfAFile(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "network.json")
	for name, tt := range map[string]struct {
		content string
		code    int
		want    string // the network that is sent, or what is said
	}{
		"whole":    {`{"proxy":{"routing":[{"destinations":["a.test"],"headers":{"A":"{{SECRET:k}}"},"secrets":{"k":"v"}}]}}`, 0, `{"proxy":{"allowedDomains":["b.test"],"routing":[{"destinations":["a.test"],"headers":{"A":"{{SECRET:k}}"},"secrets":{"k":"v"}}]}}`},
		"none":     {`null`, 0, `{"proxy":{"allowedDomains":["b.test"]}}`},
		"misspelt": {`{"proxi":{}}`, 1, "doze: FILE has no spec.network in JSON: json: unknown field \"proxi\"\n"},
		"two":      {`{"proxy":{}} {}`, 1, "doze: FILE has data after the first spec.network: put all rules into one\n"},
		"and more": {`{"proxy":{}}]`, 1, "doze: FILE has data after the first spec.network: put all rules into one\n"},
		"not JSON": {`proxy`, 1, "doze: FILE has no spec.network in JSON: invalid character 'p' looking for beginning of value\n"},
		"old list": {`{"allowedDomains":["a.test"]}`, 0, `{"proxy":{"allowedDomains":["b.test"]}}`},
	} {
		if err := os.WriteFile(file, []byte(tt.content), 0o600); err != nil {
			t.Fatal(err)
		}
		s := newServer(t)
		code, _, errs := s.command(t.Context(), t, "", "network", "set", "web", "--network", file, "--allow", "b.test")
		got := strings.ReplaceAll(errs, file, "FILE")
		if code == 0 {
			var in struct {
				Spec struct{ Network json.RawMessage }
			}
			_, body, _ := strings.Cut(s.calls()[0], "{")
			if err := json.Unmarshal([]byte("{"+body), &in); err != nil {
				t.Fatal(err)
			}
			got = string(in.Spec.Network)
		}
		if diff := cmp.Diff(tt.want, got); code != tt.code || diff != "" {
			t.Errorf("%s: exit code %d (-want +got):\n%s", name, code, diff)
		}
	}
	s := newServer(t)
	if code, _, errs := s.command(t.Context(), t, `{"allowedDomains":[]}`, "network", "set", "web", "--network", "-"); code != 0 || !strings.Contains(s.calls()[0], `"network":{"allowedDomains":[]}`) {
		t.Errorf("an empty list is not sent, for the server to refuse: %d %s %v", code, errs, s.calls())
	}
}

// TestWarnings: a warning of the platform is shown when it is new, and once.
func TestWarnings(t *testing.T) {
	t.Parallel()
	old := doze.Event{Type: doze.EventNotice, Message: doze.WarningPrefix + "old"}
	fresh := doze.Event{Type: doze.EventNotice, Message: doze.WarningPrefix + "new"}
	other := doze.Event{Type: doze.EventNotice, Message: "a new warning: none"}
	var out strings.Builder
	a := &app{err: &out}
	having := func(all ...doze.Event) (s doze.Sandbox) {
		s.Events = all
		return s
	}
	a.warn(having(old), having(old, other, fresh))
	if out.String() != "warning: new\n" {
		t.Errorf("%q", out.String())
	}
}
