package main

import (
	"fmt"
	"net"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/dozehq/doze"
)

func (a *app) egress() *cobra.Command {
	return &cobra.Command{
		Use: "egress NAME", Short: "Show where a sandbox connected to, and by which rule", Args: takes(1, 1),
		Long: fmt.Sprintf(`Show the last destinations of a sandbox, allowed and refused, newest first. The
sandbox is not woken.

RULE is what decided: an entry of a list of the sandbox, such as allowedDomains[2],
or a rule of the platform. The server has the last %d destinations in memory. A
restart of the server deletes them.`, doze.EgressDestinationsMax),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			seen, err := c.Egress(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return a.show(seen, egressRows(seen.Destinations))
		},
	}
}

func egressRows(all []doze.EgressDestination) [][]string {
	rows := [][]string{{"DESTINATION", "PROTOCOL", "VERDICT", "RULE", "COUNT", "LAST", extra + "FIRST", extra + "REASON"}}
	for _, d := range all {
		to := d.Host
		if d.Port != 0 {
			to = net.JoinHostPort(d.Host, strconv.Itoa(int(d.Port)))
		}
		rows = append(rows, []string{to, d.Protocol, d.Verdict, d.Rule, strconv.Itoa(d.Count), moment(d.LastAt), moment(d.FirstAt), d.Reason})
	}
	return rows
}
