package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/client"
)

func (a *app) sandbox() *cobra.Command {
	cmd := &cobra.Command{
		Use: "sandbox", Aliases: []string{"sandboxes", "sb"}, Short: "Manage and use sandboxes",
		Args: cobra.ArbitraryArgs, RunE: group,
	}
	cmd.AddCommand(a.forSandboxes()...)
	cmd.AddCommand(a.archive(), a.unarchive(), a.trace(), a.egress(), a.where(), a.move())
	a.complete("NAME", sandboxNames, cmd.Commands()...)
	return cmd
}

// forSandboxes are the commands that are there below doze sandbox, and without that word.
func (a *app) forSandboxes() []*cobra.Command {
	return []*cobra.Command{
		a.create(), a.list(), a.get(), a.update(), a.sleep(), a.wake(), a.remove(), a.exec(), a.shell(), a.ssh(), a.cp(), a.port(), a.processes(), a.kill(), a.logs(), a.events(),
		a.stats(), a.top(),
	}
}

func (a *app) create() *cobra.Command {
	var (
		s                doze.Sandbox
		envs, labels     []string
		volumes, scratch []string
		ports            []string
		memory, storage  int
		ifNotExists      bool
		noEntrypoint     bool
		rules            ruleFlags
	)
	cmd := &cobra.Command{
		Use:     "create [NAME]",
		Short:   "Create a sandbox; the server picks a name if you give none",
		Example: "  doze sandbox create web --image blaxel/py-app:latest --memory 2048 --env A=b --port 3000 --ttl 24h\n  doze sandbox create careful --allow pypi.org --allow files.pythonhosted.org",
		Args:    takes(0, 1),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if len(args) == 1 {
				s.Metadata.Name = args[0]
			}
			s.Spec.Runtime.Memory, s.Spec.Runtime.Storage = doze.Megabytes(memory), doze.Megabytes(storage)
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
			if noEntrypoint {
				s.Spec.Runtime.ExtraArgs = map[string]string{doze.ExtraEntrypoint: doze.EntrypointDisabled}
			}
			if s.Spec.Runtime.Ports, err = declared(ports); err != nil {
				return err
			}
			c, err := a.connect()
			if err != nil {
				return err
			}
			p := a.watch("starting", 0)
			told := a.tellNotices(cmd.Context(), c, s.Metadata.Name)
			made, err := c.Create(cmd.Context(), s, ifNotExists)
			told()
			p.end()
			if err != nil {
				return err
			}
			a.warn(doze.Sandbox{}, made)
			return a.printSandbox(made)
		},
	}
	f := cmd.Flags()
	f.StringVar(&s.Spec.Runtime.Image, "image", "", "`image` to run (default of the server: "+doze.ImageDefault+")")
	f.IntVar(&memory, "memory", 0, fmt.Sprintf("memory in `megabytes`; each 2048 MB adds one CPU (default of the server: %d)", doze.MemoryDefault))
	f.IntVar(&storage, "storage", 0, "keep the files on disk, at most so many `megabytes`; without it they are in memory")
	f.StringArrayVarP(&envs, "env", "e", nil, "environment variable, `NAME[=value]`; without =value, copied from your shell; repeatable")
	f.StringArrayVar(&labels, "label", nil, "label, `key=value`; repeatable")
	f.StringArrayVar(&volumes, "volume", nil, "volume to attach, `NAME:PATH[:ro]`; repeatable")
	f.StringArrayVar(&scratch, "scratch", nil, "scratch disk, deleted with the sandbox, `PATH:MEGABYTES`; repeatable")
	f.StringSliceVar(&ports, "port", nil, "port that the sandbox serves, `PORT[/PROTOCOL]`, such as 3000 or 5432/tcp; repeatable")
	f.StringVar(&s.Spec.Runtime.TTL, "ttl", "", "delete the sandbox after this `time`, such as 30m, 24h or 7d")
	f.StringVar(&s.Metadata.ExternalID, "external-id", "", "your own `identifier`, for searches")
	f.BoolVar(&noEntrypoint, "no-entrypoint", false, "do not run the program of the image")
	f.BoolVar(&ifNotExists, "if-not-exists", false, "if the sandbox exists, print it")
	rules.add(a, cmd)
	return cmd
}

// noticeEvery is how often a create that takes long looks for news. Most have ended before
// the first time.
const noticeEvery = 3 * time.Second

// tellNotices begins to print what the events of a sandbox say while it starts, such as that
// its image has to be made. The caller calls end. Without a name there is nothing to ask
// for.
func (a *app) tellNotices(ctx context.Context, c *client.Client, name string) (end func()) {
	if name == "" || a.whole() {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var task sync.WaitGroup
	task.Go(func() {
		every := time.NewTicker(noticeEvery)
		defer every.Stop()
		for seen := map[string]bool{}; ; {
			select {
			case <-ctx.Done():
				return
			case <-every.C:
			}
			now, err := c.Sandbox(ctx, name)
			if err != nil || now.Status == doze.Running.Status() {
				continue // the create says what is wrong
			}
			for _, e := range now.Events {
				if e.Type == doze.EventNotice && !strings.HasPrefix(e.Message, doze.WarningPrefix) && !seen[e.Message] {
					seen[e.Message] = true
					if a.watched() {
						a.say(wipe)
					}
					a.say(printable(e.Message) + "\n")
				}
			}
		}
	})
	return func() {
		cancel()
		task.Wait()
	}
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

// envs reads NAME=value and NAME arguments, in their order. A variable that is unset or
// empty here is an error.
func (a *app) envs(in []string) (out []doze.Env, err error) {
	for _, s := range in {
		name, value, err := a.variable("--env", s)
		if err != nil {
			return nil, err
		}
		out = append(out, doze.Env{Name: name, Value: new(value)})
	}
	return out, nil
}

func (a *app) list() *cobra.Command {
	var f client.Filter
	var labels []string
	cmd := &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List sandboxes, newest first", Args: takes(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if f.Labels, err = pairs("--label", labels); err != nil {
				return err
			}
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
			if a.whole() {
				return a.printWhole(all)
			}
			return a.table(sandboxRows(all...))
		},
	}
	cmd.Flags().StringVarP(&f.Query, "query", "q", "", "only sandboxes with this `text` in a name or label")
	cmd.Flags().StringArrayVar(&labels, "label", nil, "only sandboxes with this label, `key=value`; repeatable")
	cmd.Flags().StringVar(&f.ExternalID, "external-id", "", "only sandboxes with this external `id`")
	cmd.Flags().StringVar(&f.Status, "status", "", "only sandboxes with one of these comma-separated `statuses`")
	cmd.Flags().BoolVarP(&f.Terminated, "all", "a", false, "include terminated sandboxes")
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
					errs = append(errs, nameError{name, err})
					continue
				}
				if gone = append(gone, s); !a.whole() {
					errs = append(errs, copyOut(a.out, name+"\n"))
				}
			}
			if a.whole() {
				errs = append(errs, a.printWhole(gone))
			}
			return errors.Join(errs...)
		},
	}
}

func (a *app) printSandbox(s doze.Sandbox) error {
	if a.whole() {
		return a.printWhole(s)
	}
	return a.table(sandboxRows(s))
}

func sandboxRows(all ...doze.Sandbox) [][]string {
	rows := [][]string{{"NAME", "STATUS", "STATE", "IMAGE", "MEMORY", "LAST USED", "URL", extra + "CREATED", extra + "REGION", extra + "LABELS", extra + "EXTERNAL ID", extra + "ENTRYPOINT"}}
	for _, s := range all {
		r := s.Spec.Runtime
		rows = append(rows, []string{
			s.Metadata.Name, s.Status, s.State, r.Image, strconv.Itoa(int(r.Memory)), moment(s.LastUsedAt), s.Metadata.URL,
			moment(s.Metadata.CreatedAt), s.Spec.Region, joined(s.Metadata.Labels), s.Metadata.ExternalID, entrypoint(s.Entrypoint),
		})
	}
	return rows
}

// entrypoint is how the program of an image is, in a word or two.
func entrypoint(e *doze.Entrypoint) string {
	switch {
	case e == nil:
		return ""
	case e.Health == "":
		return e.Status
	case e.Status == "":
		return e.Health
	}
	return e.Status + ", " + e.Health
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

// joined are labels in the order of their keys.
func joined(labels map[string]string) string {
	var all []string
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		all = append(all, k+"="+labels[k])
	}
	return strings.Join(all, ",")
}
