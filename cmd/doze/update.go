package main

import (
	"maps"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/dozehq/doze"
)

func (a *app) update() *cobra.Command {
	var (
		want                     doze.Sandbox
		envs, unset, labels, off []string
		ports                    []string
		memory                   int
		enable, disable          bool
	)
	cmd := &cobra.Command{
		Use: "update NAME", Short: "Change a sandbox",
		Long: `Change a sandbox. What no flag names stays as it is. A change of image, memory or
variables replaces the machine: processes and files that are on no volume are
lost. Network rules have commands of their own: doze network.`,
		Example: "  doze update web --memory 2048 --env LEVEL=debug\n  doze update web --label team=core --ttl 24h\n  doze update web --disable",
		Args:    takes(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !changes(cmd) {
				return usagef("nothing to change: use a flag such as --memory")
			}
			if enable && disable {
				return usagef("choose one of --enable and --disable")
			}
			add, err := a.envs(envs)
			if err != nil {
				return err
			}
			tags, err := pairs("--label", labels)
			if err != nil {
				return err
			}
			if want.Spec.Runtime.Ports, err = declared(ports); err != nil {
				return err
			}
			c, err := a.connect()
			if err != nil {
				return err
			}
			is, err := c.Sandbox(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			want.Metadata.Name, want.Spec.Runtime.Memory = args[0], doze.Megabytes(memory)
			if len(envs)+len(unset) > 0 {
				want.Spec.Runtime.Envs = merged(is.Spec.Runtime.Envs, add, unset)
			}
			if len(labels)+len(off) > 0 {
				want.Metadata.Labels = map[string]string{}
				for k, v := range is.Metadata.Labels {
					if !slices.Contains(off, k) {
						want.Metadata.Labels[k] = v
					}
				}
				maps.Copy(want.Metadata.Labels, tags)
			}
			if enable || disable {
				want.Spec.Enabled = &enable
			}
			p := a.watch("updating", 0)
			got, err := c.Update(cmd.Context(), want)
			p.end()
			if err != nil {
				return err
			}
			return a.printSandbox(got)
		},
	}
	f := cmd.Flags()
	f.StringVar(&want.Spec.Runtime.Image, "image", "", "`image` to run")
	f.IntVar(&memory, "memory", 0, "memory in `megabytes`")
	f.StringArrayVarP(&envs, "env", "e", nil, "set an environment variable, `NAME[=value]`; without =value, copied from your shell; repeatable")
	f.StringArrayVar(&unset, "unset-env", nil, "remove the environment variable of this `name`; repeatable")
	f.StringArrayVar(&labels, "label", nil, "set a label, `key=value`; repeatable")
	f.StringArrayVar(&off, "unset-label", nil, "remove the label of this `key`; repeatable")
	f.StringSliceVar(&ports, "port", nil, "ports that the sandbox serves, `PORT[/PROTOCOL]`, instead of those of before; repeatable")
	f.StringVar(&want.Spec.Runtime.TTL, "ttl", "", "delete the sandbox this `time` after its creation")
	f.StringVar(&want.Metadata.DisplayName, "display-name", "", "`name` for people")
	f.BoolVar(&disable, "disable", false, "put the sandbox to sleep on disk, and refuse requests to it")
	f.BoolVar(&enable, "enable", false, "let requests wake the sandbox again")
	return cmd
}

// changes reports whether a command has a flag of its own.
func changes(cmd *cobra.Command) (given bool) {
	cmd.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) { given = given || f.Changed })
	return given
}

// merged are variables with some more, which replace those of the same names, and without
// others. The list is not nil: the server then takes it as it is.
func merged(is, add []doze.Env, unset []string) []doze.Env {
	all := []doze.Env{}
	for _, e := range is {
		replaced := slices.ContainsFunc(add, func(n doze.Env) bool { return n.Name == e.Name })
		if !replaced && !slices.Contains(unset, e.Name) {
			all = append(all, e)
		}
	}
	return append(all, add...)
}
