// Queries Go's own resolver like a program in a pod: `go SERVER KIND NAME ...` prints a line `KIND NAME<tab>ANSWER` per
// answer. Without an answer, ANSWER is the reason. SERVER is `udp:ADDRESS` or `tcp:ADDRESS`, or `-` for that of resolv.conf.
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
)

func main() {
	resolver := &net.Resolver{PreferGo: true, StrictErrors: true}
	if server := os.Args[1]; server != "-" {
		first, address, _ := strings.Cut(server, ":")
		resolver.Dial = func(ctx context.Context, network, _ string) (net.Conn, error) {
			if first == "tcp" {
				network = "tcp"
			}
			return new(net.Dialer).DialContext(ctx, network, address)
		}
	}
	for words := os.Args[2:]; len(words) > 1; words = words[2:] {
		answers, err := ask(resolver, words[0], words[1])
		if err != nil {
			answers = []string{reason(err)}
		}
		for _, answer := range answers {
			fmt.Printf("%s %s\t%s\n", words[0], words[1], strings.TrimSuffix(answer, "."))
		}
	}
}

func ask(resolver *net.Resolver, kind, name string) (answers []string, err error) {
	ctx := context.Background()
	switch kind {
	case "addresses", "ipv4", "ipv6":
		network := map[string]string{"addresses": "ip", "ipv4": "ip4", "ipv6": "ip6"}[kind]
		addresses, err := resolver.LookupNetIP(ctx, network, name)
		for _, address := range addresses {
			answers = append(answers, address.Unmap().String())
		}
		return answers, err
	case "srv":
		_, records, err := resolver.LookupSRV(ctx, "", "", name)
		for _, srv := range records {
			answers = append(answers, fmt.Sprint(srv.Priority, srv.Weight, srv.Port)+" "+srv.Target)
		}
		return answers, err
	case "txt":
		return resolver.LookupTXT(ctx, name)
	case "name":
		return resolver.LookupAddr(ctx, name)
	case "canonical":
		cname, err := resolver.LookupCNAME(ctx, name)
		return []string{cname}, err
	}
	return nil, errors.New("no such kind of question")
}

func reason(err error) string {
	var dns *net.DNSError
	switch {
	case errors.As(err, &dns) && dns.IsNotFound:
		return "not found"
	default:
		return err.Error()
	}
}
