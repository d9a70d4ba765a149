package main

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/client"
)

func (a *app) node() *cobra.Command {
	cmd := &cobra.Command{
		Use: "node", Aliases: []string{"nodes"}, Short: "List nodes, add them and take them away (operators only)",
		Args: cobra.ArbitraryArgs, RunE: group,
	}
	change := func(use, short string, do func(*client.Client, context.Context, string) (doze.Node, error)) *cobra.Command {
		return &cobra.Command{
			Use: use, Short: short, Args: takes(1, -1),
			RunE: func(cmd *cobra.Command, args []string) error {
				return a.each(cmd.Context(), args, func(ctx context.Context, c *client.Client, id string) error {
					_, err := do(c, ctx, id)
					return err
				})
			},
		}
	}
	cmd.AddCommand(
		a.listNodes(), a.nodeToken(),
		change("cordon NODE…", "Give nodes no new sandboxes", (*client.Client).CordonNode),
		change("uncordon NODE…", "Give nodes new sandboxes again", (*client.Client).UncordonNode),
		a.nodeSandboxes(), a.drainNode(), a.removeNode(), a.settleNodes(),
	)
	a.complete("NODE", nodeNames, cmd.Commands()...)
	return cmd
}

// nodeNames returns the ids of all nodes.
func nodeNames(ctx context.Context, c *client.Client) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		all, err := c.Nodes(ctx)
		if err != nil {
			yield("", err)
			return
		}
		for _, n := range all {
			if !yield(n.ID, nil) {
				return
			}
		}
	}
}

func (a *app) listNodes() *cobra.Command {
	return &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List nodes with their state and memory", Args: takes(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			all, err := c.Nodes(cmd.Context())
			if err != nil {
				return err
			}
			unrecorded := extra + "UNRECORDED"
			if slices.ContainsFunc(all, func(n doze.Node) bool { return n.Unrecorded > 0 }) {
				unrecorded = "UNRECORDED"
			}
			rows := [][]string{{"NODE", "STATE", "HERE", "SANDBOXES", "AWAKE", "MEMORY", "RESERVED", "HEARD OF", "VERSION", unrecorded, extra + "URL", extra + "DRIVER", extra + "EPOCH", extra + "CREATED"}}
			for _, n := range all {
				here := "no"
				if n.Present {
					here = "yes"
				}
				rows = append(rows, []string{
					n.ID, string(n.State), here, fmt.Sprint(n.Sandboxes), fmt.Sprint(n.Awake), fmt.Sprint(n.Memory), fmt.Sprint(n.Reserved),
					moment(n.RenewedAt), n.Version, fmt.Sprint(n.Unrecorded), n.URL, n.Driver, fmt.Sprint(n.Epoch), moment(n.CreatedAt),
				})
			}
			return a.show(all, rows)
		},
	}
}

func (a *app) nodeToken() *cobra.Command {
	var ttl string
	cmd := &cobra.Command{
		Use: "token", Short: "Print the command with which a new machine joins, once",
		Long: `Print the command with which a new machine joins, once.
It has a token that is good for --ttl, also for several machines. The token is a
secret: a machine that joins gets the keys of a node.`,
		Example: "  doze node token --ttl 1h", Args: takes(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			t, err := c.CreateNodeToken(cmd.Context(), ttl)
			if err != nil {
				return err
			}
			if a.whole() {
				return a.printWhole(t)
			}
			return copyOut(a.out, fmt.Sprintf("dozed node --control %s --join %s\n", printable(t.Control), printable(t.Token)))
		},
	}
	cmd.Flags().StringVar(&ttl, "ttl", doze.NodeTokenTTL, "`lifetime` of the token, such as 1h or 7d")
	return cmd
}

func (a *app) drainNode() *cobra.Command {
	return &cobra.Command{
		Use: "drain NODE", Short: "Move all sandboxes of a node to others, and give it no new ones",
		Long: `Move all sandboxes of a node to others, and give it no new ones.
Each sandbox keeps its memory and processes. Requests to a sandbox wait while it moves.
The command ends when all have moved, and fails if some could not.`,
		Args: takes(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			end := a.tellDrain(cmd.Context(), c, args[0])
			d, err := c.DrainNode(cmd.Context(), args[0])
			end()
			if err != nil {
				return err
			}
			if err := a.show(d, [][]string{{"NODE", "MOVED", "STAYED"}, {args[0], fmt.Sprint(d.Moved), fmt.Sprint(d.Stayed)}}); err != nil {
				return err
			}
			if d.Stayed > 0 {
				return doze.Errorf(doze.Conflict, "%d sandboxes could not move: the log of control says why; try again with doze node drain %s", d.Stayed, args[0])
			}
			return nil
		},
	}
}

func (a *app) removeNode() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use: "rm NODE…", Aliases: []string{"delete"}, Short: "Forget stopped nodes that have nothing",
		Long: `Forget stopped nodes that have nothing.
A node that alone has something is refused, and the error names what it has.
If it was destroyed, --force removes it. Its sandboxes that the bucket has go on
elsewhere. What only the node had is lost, and printed.`,
		Args: takes(1, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			all := []doze.RemovedNode{}
			err := a.each(cmd.Context(), args, func(ctx context.Context, c *client.Client, id string) error {
				gone, err := c.RemoveNode(ctx, id, force)
				if err == nil {
					all = append(all, gone)
				}
				return err
			})
			if force && (err == nil || len(all) > 0) {
				err = errors.Join(err, a.showLosses(all))
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "remove a node that was destroyed, and lose what only it had")
	return cmd
}

func (a *app) settleNodes() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use: "settle", Short: "Have restored records count again",
		Long: `Have restored records count again.
Until then, nodes keep sandboxes that the records do not know. Wait until all
nodes are here. If something would be lost, or a node is away, the error says
so. With --force, that is lost, and printed.`,
		Args: takes(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			s, err := c.SettleNodes(cmd.Context(), force)
			if err != nil {
				return err
			}
			return a.showLosses([]doze.RemovedNode{{Total: s.Total, Lost: s.Lost}})
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "lose what nodes have and the records do not")
	return cmd
}

// showLosses prints what was lost with nodes.
func (a *app) showLosses(all []doze.RemovedNode) error {
	rows := [][]string{{"LOST", "WORKSPACE", "NAME", "LEFT"}}
	more := 0
	for _, gone := range all {
		more += gone.Total - len(gone.Lost)
		for _, l := range gone.Lost {
			left := "nothing"
			if l.Older {
				left = "an older state"
			}
			rows = append(rows, []string{string(l.Kind), l.Workspace, l.Name, left})
		}
	}
	if len(rows) == 1 && !a.whole() {
		a.say("nothing was lost\n")
		return nil
	}
	if err := a.show(all, rows); err != nil {
		return err
	}
	if more > 0 {
		a.say(fmt.Sprintf("and %d more: the log of control names them\n", more))
	}
	return nil
}

// drainEvery is how often a drain looks how many sandboxes are left.
const drainEvery = 3 * time.Second

// tellDrain begins to print how many sandboxes a node still has, each time that there are
// fewer. The caller calls end.
func (a *app) tellDrain(ctx context.Context, c *client.Client, node string) (end func()) {
	if a.whole() {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var task sync.WaitGroup
	task.Go(func() {
		every := time.NewTicker(drainEvery)
		defer every.Stop()
		for last := -1; ; {
			all, err := c.Nodes(ctx)
			for _, n := range all {
				if err == nil && n.ID == node && n.Sandboxes != last {
					last = n.Sandboxes
					a.say(fmt.Sprintf("%d sandboxes are on the node\n", last))
				}
			}
			select {
			case <-ctx.Done():
				return
			case <-every.C:
			}
		}
	})
	return func() {
		cancel()
		task.Wait()
	}
}

// nodeSandboxes lists what a node has.
func (a *app) nodeSandboxes() *cobra.Command {
	return &cobra.Command{
		Use: "sandboxes NODE", Short: "List the sandboxes of a node, those first that were used last", Args: takes(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			all, err := c.NodeSandboxes(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			rows := [][]string{{"WORKSPACE", "NAME", "STATUS", "STATE", "LAST USED"}}
			for _, sb := range all.Sandboxes {
				rows = append(rows, []string{sb.Workspace, sb.Name, sb.Status, sb.State, moment(sb.LastUsedAt)})
			}
			if err := a.show(all, rows); err != nil {
				return err
			}
			if more := all.Total - len(all.Sandboxes); more > 0 && !a.whole() {
				return copyOut(a.out, fmt.Sprintf("and %d more\n", more))
			}
			return nil
		},
	}
}

// where tells the node of a sandbox.
func (a *app) where() *cobra.Command {
	return &cobra.Command{
		Use: "where NAME", Short: "Show the node that has a sandbox (operators only)", Args: takes(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			at, err := c.NodeOf(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return a.show(at, [][]string{{"NAME", "NODE"}, {args[0], at.Node}})
		},
	}
}

func (a *app) move() *cobra.Command {
	var to string
	cmd := &cobra.Command{
		Use: "move NAME", Short: "Move a sandbox to another node, with memory and processes (operators only)",
		Example: "  doze sandbox move web\n  doze sandbox move web --to 5s3kq7n2xw4ajc6vhr8m", Args: takes(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			p := a.watch("moving", 0)
			m, err := c.Move(cmd.Context(), args[0], to)
			p.end()
			if err != nil {
				return err
			}
			return a.show(m, [][]string{{"NAME", "NODE"}, {args[0], m.Node}})
		},
	}
	cmd.Flags().StringVar(&to, "to", "", "`node` to move it to (default: the platform chooses one)")
	a.completeFlag(cmd, "to", nodeNames)
	return cmd
}
