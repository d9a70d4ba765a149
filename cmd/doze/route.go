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
	var guest, mask bool
	cmd := &cobra.Command{
		Use: "route SANDBOX DOMAIN…", Short: "Inject headers, JSON members and secrets into requests",
		Long: `Inject headers, JSON members and secrets into requests of a sandbox to the domains.
A domain may have methods, a scheme, a port and a path, as in
GET,HEAD:https://api.example.com/v1. With ! in front it is an exception. A rule with
secrets is for HTTPS, unless a domain begins with http://.

The sandbox never sees the secret: the platform masks it in answers. The
rule replaces the one for the same domains. Without --secret, the secrets of the
replaced rule stay. The rule does not allow the domains; use --allow for that.

Programs in the sandbox trust the platform's certificates if they read those of
the system. The documentation says what others need.`,
		Example: "  export API_KEY=…\n  doze network route web api.example.com --header 'Authorization: Bearer {{SECRET:API_KEY}}' --secret API_KEY",
		Args:    takes(2, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var rule doze.ProxyTarget
			if cmd.Flags().Changed("guest-references") {
				rule.GuestReferences = &guest
			}
			if cmd.Flags().Changed("mask-responses") {
				rule.MaskResponses = &mask
			}
			rule, err := a.ruleFrom(rule, args[1:], headers, body, secrets)
			if err != nil {
				return err
			}
			return a.changeRules(cmd.Context(), args[0], func(spec *doze.SandboxSpec) error {
				all := routingOf(spec)
				if at := slices.IndexFunc(*all, forSame(rule.Destinations)); at >= 0 {
					rule.Destinations = (*all)[at].Destinations // in their order, the server keeps its secrets
					(*all)[at] = rule
				} else {
					*all = append(*all, rule)
				}
				return nil
			})
		},
	}
	f := cmd.Flags()
	f.StringArrayVarP(&headers, "header", "H", nil, "header to set, `'Name: value'`; replaces the one of the request; repeatable")
	f.StringArrayVar(&body, "body", nil, "JSON member to add if missing, `NAME=value`; repeatable")
	f.StringArrayVar(&secrets, "secret", nil, "secret for {{SECRET:NAME}} in values, `NAME[=value]`; without =value, read from the variable NAME of your shell (safer); repeatable")
	f.BoolVar(&guest, "guest-references", false, "resolve {{SECRET:NAME}} in what the sandbox sends (default: as the platform is started)")
	f.BoolVar(&mask, "mask-responses", true, "mask the secrets in answers (default: as the platform is started)")
	return cmd
}

// ruleFrom is the routing rule of a command line, with the options of t.
func (a *app) ruleFrom(t doze.ProxyTarget, domains, headers, body, secrets []string) (_ doze.ProxyTarget, err error) {
	t.Destinations = domains
	if len(headers)+len(body) == 0 && t.GuestReferences == nil {
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
		Use: "unroute SANDBOX DOMAIN…", Short: "Delete the injection rule for exactly these domains, with its secrets", Args: takes(2, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.changeRules(cmd.Context(), args[0], func(spec *doze.SandboxSpec) error {
				all := routingOf(spec)
				at := slices.IndexFunc(*all, forSame(args[1:]))
				if at < 0 {
					return errors.New("no rule has exactly these domains: list the rules with doze network get")
				}
				*all = slices.Delete(*all, at, at+1)
				return nil
			})
		},
	}
}
