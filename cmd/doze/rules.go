package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/dozehq/doze"
)

// ruleFlags say where a sandbox is and what it may reach.
type ruleFlags struct {
	vpc, file, subnet, gateway      string
	allow, forbid, bypass, rulesets []string
	dedicated, shared               []string
	proxy                           bool
}

// add gives a command the flags.
func (n *ruleFlags) add(a *app, cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringArrayVar(&n.allow, "allow", nil, "allow only this `domain`, such as example.com or *.example.com; repeatable")
	f.StringArrayVar(&n.forbid, "forbid", nil, "deny this `domain`; repeatable")
	f.StringArrayVar(&n.bypass, "bypass", nil, "always allow this `domain`, without interception; repeatable")
	f.BoolVar(&n.proxy, "proxy", false, "trust the platform's certificates, as doze network route needs; implied by other rules")
	f.StringVar(&n.vpc, "vpc", "", "`VPC` of the sandbox (default: "+doze.DefaultVPC+")")
	f.StringVar(&n.subnet, "subnet", "", "subnet `name`; sandboxes of a VPC reach each other in the same subnet (default: none)")
	f.StringVar(&n.gateway, "gateway", "", "egress `gateway` (default: the shared address)")
	f.StringArrayVar(&n.dedicated, "dedicated", nil, "use the gateway's address for this `domain` or network only; repeatable")
	f.StringArrayVar(&n.shared, "shared", nil, "use the shared address for this `domain` or network only; repeatable")
	f.StringArrayVar(&n.rulesets, "ruleset", nil, "firewall `ruleset`: "+doze.RulesetProxy+" applies the lists to --bypass domains, "+doze.RulesetDedicated+" forbids the shared address; repeatable")
	f.StringVar(&n.file, "network", "", "JSON `file` with spec.network of the API; - is standard input")
	a.completeFlag(cmd, "vpc", vpcs.names)
	a.completeFlag(cmd, "gateway", gateways.names)
}

// apply changes spec as the flags say: each that was given takes the place of
// what was there, and an empty one leaves nothing.
func (n *ruleFlags) apply(f *pflag.FlagSet, in io.Reader, spec *doze.SandboxSpec) error {
	if f.Changed("vpc") {
		spec.VPC = cmp.Or(n.vpc, doze.DefaultVPC)
	}
	network := doze.Network{}
	switch {
	case n.file != "":
		read, err := readNetwork(in, n.file)
		if err != nil {
			return err
		}
		network = read
	case spec.Network != nil:
		network = *spec.Network
	}
	n.setProxy(f, &network)
	if f.Changed("subnet") {
		network.Subnet = n.subnet
	}
	if f.Changed("ruleset") {
		network.Firewall = nil
		if sets := given(n.rulesets); len(sets) > 0 {
			network.Firewall = &doze.Firewall{Rulesets: sets}
		}
	}
	if err := n.setEgress(f, &network); err != nil {
		return err
	}
	if spec.Network = &network; network.IsZero() {
		spec.Network = nil
	}
	return nil
}

// setProxy changes the lists; those that are deprecated do not count besides.
func (n *ruleFlags) setProxy(f *pflag.FlagSet, network *doze.Network) {
	p := doze.Proxy{}
	if network.Proxy != nil {
		p = *network.Proxy
	}
	if f.Changed("allow") {
		p.AllowedDomains, network.AllowedDomains = given(n.allow), nil
	}
	if f.Changed("forbid") {
		p.ForbiddenDomains, network.ForbiddenDomains = given(n.forbid), nil
	}
	if f.Changed("bypass") {
		p.Bypass = given(n.bypass)
	}
	if n.proxy || f.Changed("allow") || f.Changed("forbid") || f.Changed("bypass") {
		network.Proxy = &p
	}
}

func (n *ruleFlags) setEgress(f *pflag.FlagSet, network *doze.Network) error {
	e := doze.Egress{}
	if network.Egress != nil {
		e = *network.Egress
	}
	dedicated, shared := given(n.dedicated), given(n.shared)
	switch {
	case f.Changed("gateway") && n.gateway == "":
		if len(dedicated)+len(shared) > 0 {
			return usagef("--dedicated and --shared need a gateway")
		}
		network.Egress = nil
		return nil
	case f.Changed("gateway"):
		e.Gateway = n.gateway
	}
	if f.Changed("dedicated") || f.Changed("shared") {
		e.Mode, e.Policies = "", nil
	}
	switch {
	case len(dedicated) > 0 && len(shared) > 0:
		return usagef("choose one of --dedicated and --shared: what it does not name takes the other way")
	case len(dedicated) > 0:
		e.Policies = []doze.EgressPolicy{{Destinations: dedicated, Mode: doze.EgressDedicated}}
	case len(shared) > 0:
		e.Mode, e.Policies = doze.EgressDedicated, []doze.EgressPolicy{{Destinations: shared, Mode: doze.EgressShared}}
	}
	if e.Gateway != "" || e.Mode != "" || len(e.Policies) > 0 {
		network.Egress = &e
	}
	return nil
}

// given are the values of a flag that are not empty; nil if there are none.
func given(values []string) (all []string) {
	for _, v := range values {
		if v != "" {
			all = append(all, v)
		}
	}
	return all
}

// readNetwork reads a network in JSON. A member that is misspelt would be a rule
// that nobody has, and so would a second network.
func readNetwork(in io.Reader, file string) (n doze.Network, err error) {
	var b []byte
	if file == stdio {
		b, err = io.ReadAll(in)
	} else {
		b, err = os.ReadFile(file)
	}
	if err != nil {
		return n, err
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&n); err != nil {
		return n, fmt.Errorf("%s has no spec.network in JSON: %w", file, err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return n, fmt.Errorf("%s has data after the first spec.network: put all rules into one", file)
	}
	return n, nil
}
