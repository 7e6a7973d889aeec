// A server that no library can be put before: it says who its client is, and echoes.
package main

import (
	"fmt"
	"io"
	"net"
)

func main() {
	listener, err := net.Listen("tcp4", "127.0.0.1:443")
	if err != nil {
		panic(err)
	}
	for {
		client, err := listener.Accept()
		if err != nil {
			panic(err)
		}
		go func() {
			fmt.Fprintln(client, client.RemoteAddr())
			io.Copy(client, client)
			client.Close()
		}()
	}
}
