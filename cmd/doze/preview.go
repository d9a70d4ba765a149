package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/client"
)

func (a *app) preview() *cobra.Command {
	cmd := &cobra.Command{
		Use: "preview", Aliases: []string{"previews"}, Short: "Share a port of a sandbox by URL",
		Args: cobra.ArbitraryArgs, RunE: group,
	}
	cmd.AddCommand(a.createPreview(), a.listPreviews(), a.previewToken(), a.removePreview())
	a.complete("SANDBOX", sandboxNames, cmd.Commands()...)
	return cmd
}

func (a *app) createPreview() *cobra.Command {
	var p doze.Preview
	cmd := &cobra.Command{
		Use: "create SANDBOX NAME", Short: "Create a preview and print its URL",
		Long: `Create a preview and print its URL.

If the sandbox declares the port with the protocol TCP or TLS, and the platform
has a certificate, the preview carries connections instead of HTTP. doze prints
HOST:PORT then, for clients that speak TLS and send the host name. Such a
preview must be public.`,
		Example: "  doze preview create web app --port 3000 --public\n  doze preview create db pg --port 5432 --public", Args: takes(2, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !cmd.Flags().Changed("port") {
				return usagef("--port is required")
			}
			c, err := a.connect()
			if err != nil {
				return err
			}
			p.Metadata.Name = args[1]
			made, err := c.CreatePreview(cmd.Context(), args[0], p)
			if err != nil {
				return err
			}
			if a.whole() {
				return a.printWhole(made)
			}
			address, raw := streamAddress(made)
			if raw && !made.Spec.Public {
				fmt.Fprintln(a.err, "The preview is private, and a connection by TLS has no place for a token: it is refused.\n"+
					"Create the preview with --public, or use doze sandbox port "+args[0]+" "+strconv.Itoa(made.Spec.Port)+" --tcp.")
			}
			return copyOut(a.out, printable(address)+"\n")
		},
	}
	f := cmd.Flags()
	f.IntVar(&p.Spec.Port, "port", 0, "`port` of the sandbox; 443 is the sandbox API")
	f.BoolVar(&p.Spec.Public, "public", false, "allow access without a token")
	f.StringVar(&p.Spec.PrefixURL, "prefix", "", "`prefix` of the host name")
	f.StringVar(&p.Spec.CustomDomain, "domain", "", "verified custom `domain`")
	f.StringVar(&p.Spec.TTL, "ttl", "", "delete the preview after this `time`, such as 1h or 7d")
	return cmd
}

// streamAddress is the URL of a preview, or host:port if it carries connections.
func streamAddress(p doze.Preview) (address string, raw bool) {
	return strings.CutPrefix(p.Spec.URL, "tls://")
}

func (a *app) listPreviews() *cobra.Command {
	return &cobra.Command{
		Use: "ls SANDBOX", Aliases: []string{"list"}, Short: "List the previews of a sandbox", Args: takes(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			all, err := c.Previews(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			rows := [][]string{{"NAME", "PORT", "PUBLIC", "URL"}}
			for _, p := range all {
				address, _ := streamAddress(p)
				rows = append(rows, []string{p.Metadata.Name, strconv.Itoa(p.Spec.Port), strconv.FormatBool(p.Spec.Public), address})
			}
			return a.show(all, rows)
		},
	}
}

func (a *app) previewToken() *cobra.Command {
	var life string
	cmd := &cobra.Command{
		Use: "token SANDBOX NAME", Short: "Create a token for a private preview and print it", Args: takes(2, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			t := doze.PreviewToken{Metadata: doze.PreviewTokenMetadata{Name: "token"}}
			if life != "" {
				d, err := doze.ParseDuration(life)
				if err != nil {
					return usageError{err}
				}
				t.Spec.ExpiresAt = doze.Time{Time: time.Now().Add(d)}
			}
			c, err := a.connect()
			if err != nil {
				return err
			}
			made, err := c.CreatePreviewToken(cmd.Context(), args[0], args[1], t)
			if err != nil {
				return err
			}
			if a.whole() {
				return a.printWhole(made)
			}
			return copyOut(a.out, printable(made.Spec.Token)+"\n")
		},
	}
	cmd.Flags().StringVar(&life, "expires", "", "`lifetime`, such as 1h or 7d (default: unlimited)")
	return cmd
}

func (a *app) removePreview() *cobra.Command {
	return &cobra.Command{
		Use: "rm SANDBOX NAME…", Aliases: []string{"delete"}, Short: "Delete previews", Args: takes(2, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.each(cmd.Context(), args[1:], func(ctx context.Context, c *client.Client, name string) error {
				return c.DeletePreview(ctx, args[0], name)
			})
		},
	}
}
