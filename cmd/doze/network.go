package main

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/client"
)

func (a *app) network() *cobra.Command {
	cmd := &cobra.Command{
		Use: "network", Aliases: []string{"networks"}, Short: "Manage network rules, egress addresses and injected secrets",
		Long: `Manage network rules, egress addresses and injected secrets of sandboxes. Rules
take effect immediately and close connections that they forbid. The operator
enables egress for the platform (dozed all --egress).

A domain is a name such as example.com, *.example.com for all subdomains, or *.
It covers every port, or one port, as in example.com:22.`,
		Example: "  doze sandbox create web --allow pypi.org --allow '*.example.com'\n" +
			"  doze network route web api.example.com --header 'Authorization: Bearer {{SECRET:API_KEY}}' --secret API_KEY\n" +
			"  doze network get web",
		Args: cobra.ArbitraryArgs, RunE: group,
	}
	cmd.AddCommand(a.listRules(), a.getRules(), a.setRules(), a.clearRules(), a.addRule(), a.removeRule())
	a.complete("SANDBOX", sandboxNames, cmd.Commands()...)
	return cmd
}

// rules is where a sandbox is, and what it may reach.
type rules struct {
	Name    string        `json:"name"`
	VPC     string        `json:"vpc"`
	Network *doze.Network `json:"network"`
}

func rulesOf(s doze.Sandbox) rules {
	return rules{s.Metadata.Name, cmp.Or(s.Spec.VPC, doze.DefaultVPC), s.Spec.Network}
}

func (a *app) listRules() *cobra.Command {
	return &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List sandboxes with their networks and number of rules", Args: takes(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			all := []rules{} // [] in JSON
			rows := [][]string{{"NAME", "VPC", "SUBNET", "GATEWAY", "ALLOWED", "FORBIDDEN", "ROUTES"}}
			for s, err := range c.Sandboxes(cmd.Context(), client.Filter{}) {
				if err != nil {
					return err
				}
				r := rulesOf(s)
				all = append(all, r)
				p, gateway := r.Network.Rules(), ""
				if r.Network != nil && r.Network.Egress != nil {
					gateway = r.Network.Egress.Gateway
				}
				rows = append(rows, []string{r.Name, r.VPC, r.subnet(), gateway, count(p.AllowedDomains), count(p.ForbiddenDomains), count(p.Routing)})
			}
			return a.show(all, rows)
		},
	}
}

// count is how many there are, and nothing for none.
func count[T any](all []T) string {
	if len(all) == 0 {
		return ""
	}
	return strconv.Itoa(len(all))
}

func (r rules) subnet() string {
	if r.Network == nil {
		return doze.DefaultSubnet
	}
	return cmp.Or(r.Network.Subnet, doze.DefaultSubnet)
}

func (a *app) getRules() *cobra.Command {
	return &cobra.Command{
		Use: "get SANDBOX", Short: "Print the rules of a sandbox, without secrets", Args: takes(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.changeRules(cmd.Context(), args[0], nil)
		},
	}
}

// changeRules prints the rules of a sandbox, when they are changed: where it is
// and what it may reach is all that change may change, and all that is sent.
func (a *app) changeRules(ctx context.Context, name string, change func(*doze.SandboxSpec) error) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	s, err := c.Sandbox(ctx, name)
	if err != nil {
		return err
	}
	if change != nil {
		spec := doze.SandboxSpec{VPC: s.Spec.VPC, Network: s.Spec.Network}
		if err := change(&spec); err != nil {
			return err
		}
		if spec.Network == nil {
			spec.Network = &doze.Network{} // an absent one would keep the rules
		}
		before := s
		if s, err = c.Update(ctx, doze.Sandbox{Metadata: doze.Metadata{Name: name}, Spec: spec}); err != nil {
			return err
		}
		a.warn(before, s)
	}
	r := rulesOf(s)
	return a.show(r, r.rows())
}

// rows are one for each rule.
func (r rules) rows() [][]string {
	rows := [][]string{{"RULE", "VALUE"}, {"vpc", r.VPC}, {"subnet", r.subnet()}}
	p := r.Network.Rules()
	for _, list := range []struct {
		rule   string
		values []string
	}{{"allow", p.AllowedDomains}, {"forbid", p.ForbiddenDomains}, {"bypass", p.Bypass}} {
		for _, v := range list.values {
			rows = append(rows, []string{list.rule, v})
		}
	}
	for _, t := range p.Routing {
		rows = append(rows, []string{"route", strings.Join(t.Destinations, ",") + ": " + added(t)})
	}
	if r.Network == nil {
		return rows
	}
	if e := r.Network.Egress; e != nil {
		rows = append(rows, []string{"gateway", e.Gateway})
		for _, policy := range e.Policies {
			rows = append(rows, []string{policy.Mode, strings.Join(policy.Destinations, ",")})
		}
		if len(e.Policies) > 0 {
			rest := doze.EgressShared
			if e.Dedicated() {
				rest = doze.EgressDedicated
			}
			rows = append(rows, []string{rest, "everything else"})
		}
	}
	if r.Network.Firewall != nil {
		for _, set := range r.Network.Firewall.Rulesets {
			rows = append(rows, []string{"ruleset", set})
		}
	}
	return rows
}

// added is what a routing rule adds to requests, by name: a value may be one that
// somebody wrote without a secret.
func added(t doze.ProxyTarget) string {
	var all []string
	for what, values := range map[string]map[string]string{"header ": t.Headers, "body ": t.Body} {
		for name := range values {
			all = append(all, what+name)
		}
	}
	slices.Sort(all)
	if t.GuestReferences != nil && *t.GuestReferences {
		all = append(all, "guest references")
	}
	if t.MaskResponses != nil && !*t.MaskResponses {
		all = append(all, "no masks")
	}
	return strings.Join(all, ", ")
}

func (a *app) setRules() *cobra.Command {
	var n ruleFlags
	cmd := &cobra.Command{
		Use: "set SANDBOX", Short: "Change the rules of a sandbox",
		Long: `Change the rules of a sandbox. Each flag replaces all rules of its kind, so repeat
those that should stay. An empty value, as in --allow '', removes them. Rules
without a flag stay.`,
		Example: "  doze network set web --allow pypi.org --allow files.pythonhosted.org\n" +
			"  doze network set web --gateway office --dedicated bank.example.com\n" +
			"  doze network get web -o json | jq .network | doze network set web-2 --network -",
		Args: takes(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !changes(cmd) {
				return usagef("nothing to change: use a flag such as --allow, or doze network clear to remove all rules")
			}
			return a.changeRules(cmd.Context(), args[0], func(spec *doze.SandboxSpec) error { return n.apply(cmd.Flags(), a.in, spec) })
		},
	}
	n.add(a, cmd)
	return cmd
}

func (a *app) clearRules() *cobra.Command {
	return &cobra.Command{
		Use: "clear SANDBOX…", Short: "Remove all rules and injected secrets of sandboxes; they stay in their VPC", Args: takes(1, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.each(cmd.Context(), args, func(ctx context.Context, c *client.Client, name string) error {
				_, err := c.Update(ctx, doze.Sandbox{Metadata: doze.Metadata{Name: name}, Spec: doze.SandboxSpec{Network: &doze.Network{}}})
				return err
			})
		},
	}
}
