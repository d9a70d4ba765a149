package main

import (
	"errors"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dozehq/doze"
)

func (a *app) addRule() *cobra.Command {
	var headers, body, secrets []string
	cmd := &cobra.Command{
		Use: "route SANDBOX DOMAIN…", Short: "Have headers, members of JSON and secrets added to HTTPS requests on their way to domains",
		Long: `Have headers, members of JSON and secrets added to HTTPS requests on their way to
domains. The sandbox never has the secret, and an answer that repeats it comes
back masked. The rule takes the place of one for the same domains, whose secrets
it keeps if it names none. It does not allow the domains: an --allow list has to.

Programs in the sandbox must trust the certificates of the platform for these
domains: those of a sandbox that was made with a rule do, or with --proxy.`,
		Example: "  export API_KEY=…\n  doze network route web api.example.com --header 'Authorization: Bearer {{SECRET:API_KEY}}' --secret API_KEY",
		Args:    takes(2, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			rule, err := a.ruleFrom(args[1:], headers, body, secrets)
			if err != nil {
				return err
			}
			late := false
			err = a.changeRules(cmd.Context(), args[0], func(spec *doze.SandboxSpec) error {
				late = !spec.Network.Proxied()
				all := routingOf(spec)
				if at := slices.IndexFunc(*all, forSame(rule.Destinations)); at >= 0 {
					rule.Destinations = (*all)[at].Destinations // in their order, the server keeps its secrets
					(*all)[at] = rule
				} else {
					*all = append(*all, rule)
				}
				return nil
			})
			if err == nil && late && !a.asJSON() {
				a.say("note: if it was made without rules, its programs refuse the certificates that this needs: make it with --proxy\n")
			}
			return err
		},
	}
	f := cmd.Flags()
	f.StringArrayVarP(&headers, "header", "H", nil, "header that requests get, `'Name: value'`, in the place of their own; may be repeated")
	f.StringArrayVar(&body, "body", nil, "member that JSON gets if it has none of that name, `NAME=value`; may be repeated")
	f.StringArrayVar(&secrets, "secret", nil, "what {{SECRET:NAME}} in a value stands for, `NAME[=value]`: without a value, the variable NAME of here, which other users of this host cannot see; may be repeated")
	return cmd
}

// ruleFrom is the routing rule of a command line.
func (a *app) ruleFrom(domains, headers, body, secrets []string) (t doze.ProxyTarget, err error) {
	t.Destinations = domains
	if len(headers)+len(body) == 0 {
		return t, usagef("say what requests get with --header or --body; doze network unroute takes a rule away")
	}
	for _, h := range headers {
		name, value, ok := strings.Cut(h, ":")
		if !ok {
			return t, usagef("--header must be 'Name: value', not %q", h)
		}
		if t.Headers == nil {
			t.Headers = map[string]string{}
		}
		t.Headers[strings.TrimSpace(name)] = strings.TrimSpace(value)
	}
	if t.Body, err = pairs("--body", body); err != nil {
		return t, err
	}
	if len(secrets) > 0 {
		values, err := a.secretValues("--secret", secrets)
		if err != nil {
			return t, err
		}
		t.Secrets = doze.Hide(values)
	}
	return t, nil
}

// routingOf are the routing rules of a spec, which are made if there are none.
func routingOf(spec *doze.SandboxSpec) *[]doze.ProxyTarget {
	if spec.Network == nil {
		spec.Network = &doze.Network{}
	}
	if spec.Network.Proxy == nil {
		spec.Network.Proxy = &doze.Proxy{}
	}
	return &spec.Network.Proxy.Routing
}

// forSame reports whether a rule is for these domains, in any order.
func forSame(domains []string) func(doze.ProxyTarget) bool {
	sorted := slices.Sorted(slices.Values(domains))
	return func(t doze.ProxyTarget) bool {
		return slices.Equal(sorted, slices.Sorted(slices.Values(t.Destinations)))
	}
}

func (a *app) removeRule() *cobra.Command {
	return &cobra.Command{
		Use: "unroute SANDBOX DOMAIN…", Short: "End that, for the domains of one rule; its secrets are gone", Args: takes(2, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.changeRules(cmd.Context(), args[0], func(spec *doze.SandboxSpec) error {
				all := routingOf(spec)
				at := slices.IndexFunc(*all, forSame(args[1:]))
				if at < 0 {
					return errors.New("there is no rule for exactly these domains: doze network get lists those that there are")
				}
				*all = slices.Delete(*all, at, at+1)
				return nil
			})
		},
	}
}
