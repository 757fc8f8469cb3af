// Dex as a program: its server with everything in memory. Its own program cannot be built without cgo, for SQLite.
//
//	dex CONFIG    a JSON file: issuer, listen, tlsCert, tlsKey, clients and passwords, as in Dex's own configuration
package main

import (
	"context"
	"encoding/json"
	"log"
	"log/slog"
	"net/http"
	"os"

	"github.com/dexidp/dex/server"
	"github.com/dexidp/dex/storage"
	"github.com/dexidp/dex/storage/memory"
	"github.com/dexidp/dex/web"
	"github.com/prometheus/client_golang/prometheus"
)

type config struct {
	Issuer, Listen, TLSCert, TLSKey string
	Clients                         []storage.Client
	Passwords                       []struct{ Email, Username, UserID, Hash string }
}

func main() {
	text, err := os.ReadFile(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	var c config
	if err := json.Unmarshal(text, &c); err != nil {
		log.Fatal(err)
	}
	logger := slog.New(slog.NewTextHandler(os.Stderr, nil))
	var passwords []storage.Password
	for _, each := range c.Passwords {
		passwords = append(passwords, storage.Password{Email: each.Email, Username: each.Username, UserID: each.UserID, Hash: []byte(each.Hash)})
	}
	kept := storage.WithStaticClients(memory.New(logger), c.Clients)
	kept = storage.WithStaticPasswords(kept, passwords, logger)
	kept = storage.WithStaticConnectors(kept, []storage.Connector{
		{ID: server.LocalConnector, Name: "Password", Type: server.LocalConnector},
		// Signs in Kilgore Trout, who is in the group "authors".
		{ID: "mock", Name: "Mock", Type: "mockCallback", Config: []byte("{}")},
	})
	policy, err := server.NewRefreshTokenPolicy(logger, true, "", "", "0s")
	if err != nil {
		log.Fatal(err)
	}
	dex, err := server.NewServer(context.Background(), server.Config{
		Issuer:             c.Issuer,
		Storage:            kept,
		SkipApprovalScreen: true,
		RefreshTokenPolicy: policy,
		Web:                server.WebConfig{WebFS: web.FS()},
		Logger:             logger,
		PrometheusRegistry: prometheus.NewRegistry(),
	})
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(http.ListenAndServeTLS(c.Listen, c.TLSCert, c.TLSKey, dex))
}
