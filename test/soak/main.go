// Command soak runs sandboxes that keep memory and files and check them at each
// request, lets them fall asleep and wake at random instants, copies them and
// puts them back to what they were, archives others, kills the daemon at random,
// and counts. It fails on any error and on any wrong byte.
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
	flag.DurationVar(&o.length, "for", 10*time.Minute, "how `long`")
	flag.Uint64Var(&o.seed, "seed", uint64(time.Now().UnixNano()), "`number` that decides what happens when")
	flag.IntVar(&o.sandboxes, "sandboxes", 6, "how `many` keep something")
	flag.IntVar(&o.megabytes, "mb", 24, "megabytes that each of them keeps")
	flag.Parse()
	c, err := soak(ctx, o)
	fmt.Println(c)
	if err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
		stop()
		os.Exit(1) //nolint:gocritic // stop has run
	}
}
