// Command soak runs sandboxes that check their memory and files at each request. It
// lets them fall asleep and wake at random instants, forks them, rolls them back, and
// archives others. At random it kills dozed, the launcher and the processes of
// sandboxes, and cuts the power. It counts, and fails on any error and on any wrong
// byte. It also fails on a sandbox that fails although it had a checkpoint, or goes
// back to its checkpoint without telling.
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
	var o options
	flag.DurationVar(&o.length, "for", 10*time.Minute, "how `long`, without -sleeps")
	sleeps := flag.Int64("sleeps", 0, "go on until sandboxes were asleep and woke so `many` times")
	flag.Uint64Var(&o.seed, "seed", uint64(time.Now().UnixNano()), "`number` that decides what happens when")
	flag.IntVar(&o.sandboxes, "sandboxes", 6, "how `many` keep something")
	flag.IntVar(&o.megabytes, "mb", 24, "megabytes that each of them keeps, on average")
	flag.StringVar(&o.logs, "logs", "", "`directory` to copy the logs to if something is wrong; by default a new one for temporary files")
	flag.Parse()
	if *sleeps > 0 {
		o.length, o.met = 0, func(c counts) bool { return c.sleeps() >= *sleeps }
	}
	c, err := soak(ctx, o)
	fmt.Println(c)
	if err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
		stop()
		os.Exit(1) //nolint:gocritic // stop has run
	}
}
