package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/client"
)

func (a *app) sandbox() *cobra.Command {
	cmd := &cobra.Command{
		Use: "sandbox", Aliases: []string{"sandboxes", "sb"}, Short: "Create, list, use and delete sandboxes",
		Args: cobra.ArbitraryArgs, RunE: group,
	}
	cmd.AddCommand(a.create(), a.list(), a.get(), a.remove(), a.exec(), a.shell(), a.logs(), a.processes(), a.cp(), a.port(), a.trace(), a.archive(), a.unarchive())
	a.complete("NAME", sandboxNames, cmd.Commands()...)
	return cmd
}

func (a *app) create() *cobra.Command {
	var (
		s                doze.Sandbox
		envs, labels     []string
		volumes, scratch []string
		ports            []int
		memory           int
		ifNotExists      bool
		rules            ruleFlags
	)
	cmd := &cobra.Command{
		Use:     "create [NAME]",
		Short:   "Create a sandbox; without a name, the server makes one up",
		Example: "  doze sandbox create web --image blaxel/py-app:latest --memory 2048 --env A=b --port 3000 --ttl 24h\n  doze sandbox create careful --allow pypi.org --allow files.pythonhosted.org",
		Args:    takes(0, 1),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if len(args) == 1 {
				s.Metadata.Name = args[0]
			}
			s.Spec.Runtime.Memory = doze.Megabytes(memory)
			if s.Spec.Runtime.Envs, err = a.envs(envs); err != nil {
				return err
			}
			if s.Metadata.Labels, err = pairs("--label", labels); err != nil {
				return err
			}
			if s.Spec.Volumes, err = attachments(volumes, scratch); err != nil {
				return err
			}
			if err := rules.apply(cmd.Flags(), a.in, &s.Spec); err != nil {
				return err
			}
			for _, p := range ports {
				s.Spec.Runtime.Ports = append(s.Spec.Runtime.Ports, doze.Port{Target: p})
			}
			c, err := a.connect()
			if err != nil {
				return err
			}
			p := a.watch("starting", 0)
			made, err := c.Create(cmd.Context(), s, ifNotExists)
			p.end()
			if err != nil {
				return err
			}
			return a.printSandbox(made)
		},
	}
	f := cmd.Flags()
	f.StringVar(&s.Spec.Runtime.Image, "image", "", "`image` to run (default of the server: "+doze.ImageDefault+")")
	f.IntVar(&memory, "memory", 0, fmt.Sprintf("memory in `megabytes`; 2048 of them bring one CPU (default of the server: %d)", doze.MemoryDefault))
	f.StringArrayVarP(&envs, "env", "e", nil, "environment variable, `NAME[=value]`: without a value, that of here; may be repeated")
	f.StringArrayVar(&labels, "label", nil, "label, `key=value`; may be repeated")
	f.StringArrayVar(&volumes, "volume", nil, "volume to attach and where, `NAME:PATH[:ro]`; may be repeated")
	f.StringArrayVar(&scratch, "scratch", nil, "disk that ends with the sandbox, `PATH:MEGABYTES`; may be repeated")
	f.IntSliceVar(&ports, "port", nil, "port that the sandbox serves; may be repeated")
	f.StringVar(&s.Spec.Runtime.TTL, "ttl", "", "delete it after this `time`, such as 30m, 24h or 7d")
	f.StringVar(&s.Metadata.ExternalID, "external-id", "", "`identifier` of your own, to find it by")
	f.BoolVar(&ifNotExists, "if-not-exists", false, "if the name is taken, print the sandbox that has it")
	rules.add(a, cmd)
	return cmd
}

// pairs reads key=value arguments.
func pairs(flag string, in []string) (map[string]string, error) {
	if len(in) == 0 {
		return nil, nil
	}
	out := map[string]string{}
	for _, s := range in {
		k, v, ok := strings.Cut(s, "=")
		if !ok || k == "" {
			return nil, usagef("%s must be key=value, not %q", flag, s)
		}
		out[k] = v
	}
	return out, nil
}

// envs reads NAME=value and NAME arguments, in their order.
func (a *app) envs(in []string) (out []doze.Env, err error) {
	for _, s := range in {
		name, value, ok := strings.Cut(s, "=")
		if name == "" {
			return nil, usagef("--env must be NAME=value, not %q", s)
		}
		if !ok {
			value = a.getenv(name)
		}
		out = append(out, doze.Env{Name: name, Value: new(value)})
	}
	return out, nil
}

func (a *app) list() *cobra.Command {
	var f client.Filter
	cmd := &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List sandboxes, newest first", Args: takes(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			all := []doze.Sandbox{} // [] in JSON
			for s, err := range c.Sandboxes(cmd.Context(), f) {
				if err != nil {
					return err
				}
				all = append(all, s)
			}
			if a.asJSON() {
				return a.printJSON(all)
			}
			return a.table(sandboxRows(all...))
		},
	}
	cmd.Flags().StringVarP(&f.Query, "query", "q", "", "only those with this `text` in a name or label")
	cmd.Flags().StringVar(&f.ExternalID, "external-id", "", "only those with this external `id`")
	cmd.Flags().StringVar(&f.Status, "status", "", "only those with one of these `statuses`, comma-separated")
	cmd.Flags().BoolVarP(&f.Terminated, "all", "a", false, "those too that have ended")
	return cmd
}

func (a *app) get() *cobra.Command {
	return &cobra.Command{
		Use: "get NAME", Short: "Print one sandbox", Args: takes(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			s, err := c.Sandbox(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return a.printSandbox(s)
		},
	}
}

func (a *app) remove() *cobra.Command {
	return &cobra.Command{
		Use: "rm NAME…", Aliases: []string{"delete"}, Short: "Delete sandboxes", Args: takes(1, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			gone, errs := []doze.Sandbox{}, []error(nil)
			for _, name := range args {
				s, err := c.Delete(cmd.Context(), name)
				if err != nil {
					errs = append(errs, fmt.Errorf("%s: %w", name, err))
					continue
				}
				if gone = append(gone, s); !a.asJSON() {
					errs = append(errs, copyOut(a.out, name+"\n"))
				}
			}
			if a.asJSON() {
				errs = append(errs, a.printJSON(gone))
			}
			return errors.Join(errs...)
		},
	}
}

func (a *app) printSandbox(s doze.Sandbox) error {
	if a.asJSON() {
		return a.printJSON(s)
	}
	return a.table(sandboxRows(s))
}

func sandboxRows(all ...doze.Sandbox) [][]string {
	rows := [][]string{{"NAME", "STATUS", "STATE", "IMAGE", "MEMORY", "LAST USED", "URL"}}
	for _, s := range all {
		r := s.Spec.Runtime
		rows = append(rows, []string{
			s.Metadata.Name, s.Status, s.State, r.Image, strconv.Itoa(int(r.Memory)), moment(s.LastUsedAt), s.Metadata.URL,
		})
	}
	return rows
}

// envMap is envs for a command.
func (a *app) envMap(in []string) (map[string]string, error) {
	list, err := a.envs(in)
	out := map[string]string{}
	for _, e := range list {
		out[e.Name] = e.Text()
	}
	return out, err
}
