// Command fleet starts a real fleet of dozed, on hosts with networks of their own, and does
// harm to it. It fails if a sandbox ever runs twice, goes back without telling, has a wrong byte,
// or does not answer in the end.
//
//	fleet faults    has nodes, control and the bucket fail, and their networks
//	fleet takeover  kills a node, and measures how soon its sandboxes answer elsewhere
//	fleet volumes   has a volume go from node to node, with its sandbox and without
//	fleet snapshots loses the node of a snapshot, and begins sandboxes from it elsewhere
//	fleet images    builds an image, loses its node, and begins sandboxes of it elsewhere
//	fleet drain     drains a node whose sandboxes are asked all the time
//	fleet upgrade   restarts each process, while sandboxes and the API are asked all the time
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := command(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "fleet:", err)
		stop()
		os.Exit(1) //nolint:gocritic // stop has run
	}
}

func command(ctx context.Context, args []string) (err error) {
	var o options
	var asleep, awake, fill int
	flags := flag.NewFlagSet("fleet", flag.ContinueOnError)
	flags.Uint64Var(&o.seed, "seed", uint64(time.Now().UnixNano()), "`number` that decides what fails when")
	flags.IntVar(&o.faults, "faults", 300, "how `many` faults")
	flags.IntVar(&o.sandboxes, "sandboxes", 6, "how `many` sandboxes suffer, or are drained")
	flags.StringVar(&o.only, "only", "", "only faults, or restarts, whose name has this `text`")
	flags.DurationVar(&nodeLease, "lease", nodeLease, "how `long` the lease of a node is")
	flags.IntVar(&o.times, "times", 1, "how `often` each process is restarted")
	flags.BoolVar(&o.each, "each", false, "have all kinds of faults happen about as often")
	flags.DurationVar(&o.clock, "clock", 0, "by how `much` faults may set the clock of this host wrong, for seconds, which everything on it sees; 0: they do not")
	flags.IntVar(&asleep, "asleep", 50, "how `many` sandboxes sleep when their node is lost")
	flags.IntVar(&fill, "fill", 0, "how many `megabytes` the volume has")
	flags.IntVar(&awake, "awake", 20, "how `many` sandboxes run when their node is lost")
	answers := flags.String("answers", "", "`file` for the times of a takeover, as JSON")
	dir := flags.String("dir", "", "empty `directory` for the fleet, which stays; by default a new one for temporary files, which is removed")
	if len(args) == 0 {
		return fmt.Errorf("say what: faults, takeover, volumes, snapshots, images, drain or upgrade")
	}
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	if o.clock < 0 || o.clock > clockMost {
		return fmt.Errorf("-clock must be between 0 and %s", clockMost)
	}
	if *dir == "" {
		if *dir, err = os.MkdirTemp("", "doze-fleet-"); err != nil {
			return err
		}
		defer func() {
			if err != nil {
				fmt.Println("the logs are in", *dir)
				return
			}
			err = os.RemoveAll(*dir)
		}()
	}
	o.say = func(text string) { fmt.Println(time.Now().Format(clockForm), text) }
	switch args[0] {
	case "faults":
		c, err := try(ctx, *dir, o)
		fmt.Println(c)
		return c.verdict(err)
	case "takeover":
		return takeover(ctx, *dir, asleep, awake, *answers, o.say)
	case "volumes":
		return volumes(ctx, *dir, fill, o.say)
	case "snapshots":
		return snapshots(ctx, *dir, o.say)
	case "images":
		return images(ctx, *dir, o.say)
	case "drain":
		d, err := drain(ctx, *dir, o.sandboxes, o.say)
		fmt.Println(d)
		return err
	case "upgrade":
		u, err := upgrade(ctx, *dir, o)
		fmt.Println(u)
		return err
	}
	return fmt.Errorf("there is no %q: say faults, takeover, volumes, snapshots, images, drain or upgrade", args[0])
}
