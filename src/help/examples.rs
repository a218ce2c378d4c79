//! The examples of `--help` and of the manual pages: all of them, by verb.

/// A line that can be typed, and what it does, if that is not plain from the verb.
pub(super) type Example = (&'static str, &'static str);

/// Each verb's examples. A verb has its row here, or in [`NEED_NONE`].
pub(super) const EXAMPLES: &[(&str, &[Example])] = &[
    (
        "up",
        &[
            ("muster up", "a secured fleet of this one host"),
            ("muster up --listen 192.0.2.5", "other hosts may join (`muster token create`)"),
            ("muster up --data-dir ./try --web-port 0 --mqtt-port 0 --hosts-port 0", "beside another one"),
        ],
    ),
    (
        "simulate",
        &[
            ("muster simulate --hosts 1000", "until Ctrl-C; `muster up` runs in another terminal"),
            ("muster simulate --hosts 1000 --churn 5%/min --fail 1% --takes 2s", ""),
            ("muster simulate --hosts 1000 --metrics", "20 series of each host"),
            ("muster simulate --hosts 500 --for 10m -o json", "a report in each line"),
            ("muster simulate --hosts 500 --tokens tokens", "with tokens of a console elsewhere"),
            ("muster exec --select label.simulated=true -- true", "a command to all of them"),
        ],
    ),
    (
        "agent",
        &[
            ("muster agent install --now --join TOKEN", "join, and stay as a systemd service"),
            ("muster agent --join TOKEN", "join, and run in this terminal"),
            ("muster agent --config /etc/muster/agent.toml", ""),
            ("muster agent --print-config", "every key, with its default"),
            ("muster agent --config agent.toml --check-config", "all that is wrong with it"),
        ],
    ),
    (
        "agent install",
        &[
            ("muster agent install --now --join TOKEN", "with a token of `muster token create`"),
            ("muster agent install --now", "upgrade program and service; yunos keep running"),
            ("muster agent install --dry-run", ""),
        ],
    ),
    ("agent detach", &[("muster agent detach", ""), ("muster agent detach --data-dir /var/lib/muster/agent", "")]),
    ("agent uninstall", &[("muster agent uninstall --dry-run", ""), ("muster agent uninstall", "")]),
    (
        "console",
        &[
            ("muster console --config /etc/muster/console.toml", ""),
            ("muster console --print-config", "every key, with its default"),
            ("muster console --config console.toml --check-config", "all that is wrong with it"),
        ],
    ),
    (
        "doctor",
        &[
            ("muster doctor", "as root, or as the user that the roles run as"),
            ("muster doctor --out muster.tar.gz", "for somebody who helps, without secrets"),
            ("muster doctor -o json", ""),
        ],
    ),
    ("console init", &[("muster console init", "before the broker of a new fleet gets its certificate")]),
    (
        "console issue",
        &[
            ("muster console issue --role broker --name broker --san 192.0.2.5 --out /etc/muster/broker", ""),
            ("muster console issue --role observer --name grafana --for 30d --out ./grafana", ""),
        ],
    ),
    ("console revoke", &[("muster console revoke operator-anna", "")]),
    (
        "broker",
        &[
            ("muster broker --config /etc/muster/broker.toml", ""),
            ("muster broker --print-config", "every key, with its default"),
            ("muster broker --config broker.toml --check-config", "all that is wrong with it"),
        ],
    ),
    (
        "broker render",
        &[
            ("muster broker render --program mosquitto --console main --out /etc/mosquitto/muster", ""),
            ("muster broker render --program nats --console main --host 0e2c1a4e-6a61-4a1c-9d0f-0d6d5a8f1f52", ""),
        ],
    ),
    ("broker password", &[("muster broker password operator-anna >> /etc/muster/broker/users", "")]),
    (
        "host ls",
        &[
            ("muster host ls", ""),
            ("muster host ls --select 'label.site=north and fact.cpus>=4'", ""),
            ("muster host ls --sort presence -n 20", "offline hosts first"),
        ],
    ),
    ("host show", &[("muster host show till-7", "")]),
    ("host refresh", &[("muster host refresh till-7", "")]),
    (
        "host label",
        &[
            ("muster host label till-7", "list its labels"),
            ("muster host label till-7 till-8 canary=yes tier=gold", ""),
            ("muster host label till-7 tier=iron --replace", ""),
            ("muster host label till-7 canary-", "remove a label"),
            ("muster host label --select 'fact.arch=aarch64' board=pi", ""),
        ],
    ),
    (
        "host cordon",
        &[
            ("muster host cordon till-7", "it keeps what it has"),
            ("muster host cordon", "list hosts that are cordoned or drained"),
        ],
    ),
    ("host uncordon", &[("muster host uncordon till-7", ""), ("muster host uncordon --select 'label.site=north'", "")]),
    ("host drain", &[("muster host drain till-7", "before it is taken away")]),
    ("host revoke", &[("muster host revoke till-7", "")]),
    ("host rm", &[("muster host rm till-7", "")]),
    (
        "token create",
        &[
            ("muster token create", ""),
            ("muster token create --count 100 --for 1d > tokens", "one in each line"),
            ("muster token create --replace till-7", "after its disk was replaced"),
        ],
    ),
    ("token revoke", &[("muster token revoke 0a1b2c3d", "")]),
    ("authority show", &[("muster authority show", "")]),
    (
        "authority rotate",
        &[
            ("muster authority rotate signing", "make a new key, and tell all hosts of it"),
            ("muster authority rotate root", "make a new root, and then finish twice"),
        ],
    ),
    (
        "authority finish",
        &[
            ("muster authority finish", "sign with the new key, once all have it"),
            ("muster authority finish --without till-7", "till-7 is away, and gets it when it is back"),
        ],
    ),
    ("authority cancel", &[("muster authority cancel", "")]),
    (
        "exec",
        &[
            ("muster exec -- uname -a", "on the only host"),
            ("muster exec --all --timeout 10s -- df -h", ""),
            ("muster exec --host shop-7 --host shop-8 -- uptime", ""),
            ("muster exec --select 'label.site=north and not host=shop-7' -- uptime", ""),
            ("muster exec --select 'unit(role=web and phase=failed)' -- df -h", ""),
            ("muster exec --shell --host shop-7 -- 'journalctl -n 20 | grep error'", ""),
            ("muster exec --host shop-7 --user www-data --cwd /srv/www --env STAGE=test -- ./check.sh", ""),
            ("muster exec --host shop-7 --stdin new.conf --stdout drop -- tee /etc/shop.conf", ""),
            ("muster exec --batch update.yaml --host shop-7 --timeout 5m", ""),
            ("muster exec --daemon --host shop-7 -- tcpdump -i eth0 -w /tmp/trace", ""),
            ("muster exec --passthrough --host shop-7 -- test -e /etc/shop.conf && echo found", ""),
        ],
    ),
    (
        "apply",
        &[
            ("muster apply shop.yaml --dry-run", "show what would change"),
            ("muster apply fleet/", "all documents of a folder"),
            ("muster apply units.yaml deployments.yaml --host till-7", "units that name no host go there"),
        ],
    ),
    (
        "logs",
        &[
            ("muster logs default/server", "the last lines, also of what has ended"),
            ("muster logs till-7:default/server -f", "until Ctrl-C"),
            ("muster logs default/server -t --since 10m", ""),
        ],
    ),
    (
        "ps",
        &[
            ("muster ps", ""),
            ("muster ps --host till-7 -w", "again and again, until Ctrl-C"),
            ("muster ps --select 'phase=failed'", "what does not run, and why"),
        ],
    ),
    ("status", &[("muster status", ""), ("muster status -w", ""), ("muster status -o json", "for monitoring")]),
    ("context use", &[("muster context use second", "")]),
    ("context rm", &[("muster context rm second", "")]),
    ("command ls", &[("muster command ls", ""), ("muster command ls --host till-7 -n 100", "")]),
    ("command show", &[("muster command show 0198c1f2", "")]),
    ("command cancel", &[("muster command cancel 0198c1f2", "")]),
    (
        "artifact create",
        &[
            ("muster artifact create ./till", "with ./till.manifest.json beside it"),
            ("muster artifact create ./server --role server --version 1.0.0", ""),
        ],
    ),
    ("artifact show", &[("muster artifact show server@1.0.0", ""), ("muster artifact show server", "the newest")]),
    ("artifact rm", &[("muster artifact rm server@1.0.0", "")]),
    ("artifact gc", &[("muster artifact gc --dry-run", ""), ("muster artifact gc --yes", "")]),
    ("config create", &[("muster config create server.main 1 server.json", "")]),
    ("config show", &[("muster config show server.main@1", ""), ("muster config show server.main", "the newest")]),
    ("config diff", &[("muster config diff server.main@1 server.main@2", "")]),
    ("config rm", &[("muster config rm server.main@1", "")]),
    (
        "secret set",
        &[
            ("muster secret set db-password", "asks for the value at a terminal"),
            ("muster secret set tls-key --realm prod --file key.pem", ""),
            ("openssl rand -hex 32 | muster secret set session-key --yes", ""),
        ],
    ),
    ("secret show", &[("muster secret show db-password --realm prod", "")]),
    ("secret history", &[("muster secret history db-password", "")]),
    ("secret rm", &[("muster secret rm db-password", "")]),
    (
        "realm create",
        &[
            ("muster realm create shop --bind 10.0.0.7 --ports 12000-12099", ""),
            ("muster realm create shop-test --parent shop --ports 12100-12199", ""),
        ],
    ),
    ("realm show", &[("muster realm show shop", "")]),
    (
        "realm set",
        &[("muster realm set shop --enabled no", ""), ("muster realm set shop --enabled yes --ports none", "")],
    ),
    ("realm rm", &[("muster realm rm shop-test", "")]),
    (
        "unit ls",
        &[
            ("muster unit ls", ""),
            ("muster unit ls --kind container --host shop-7", ""),
            ("muster unit ls --select 'realm=prod and not phase=running'", ""),
            ("muster unit ls --sort phase -n 20", "failures first"),
        ],
    ),
    ("unit show", &[("muster unit show default/server", ""), ("muster unit show till-7:default/server", "")]),
    (
        "unit create yuno",
        &[
            ("muster artifact create ./server --role server --version 1.0.0", ""),
            ("muster unit create yuno default/server --artifact server@1.0.0 --config server.main@1 --run", ""),
            ("muster unit create yuno default/web --artifact web --ready http:8080/ready --live every=5s,tcp:8080", ""),
        ],
    ),
    (
        "unit create container",
        &[
            ("muster artifact create shop.tar.gz --role shop --version 1.0.0", ""),
            ("muster unit create container default/shop --rootfs shop@1.0.0 --run -- /bin/shop --port 80", ""),
            ("muster unit create container default/web --image nginx:1.27 --provide http --port http=80 --run", ""),
        ],
    ),
    (
        "unit apply",
        &[
            ("muster unit apply shop.yaml --dry-run", ""),
            ("muster unit apply till.yaml --select 'label.site=north'", ""),
            ("muster unit export | muster unit apply -", "changes nothing"),
        ],
    ),
    (
        "unit export",
        &[("muster unit export > fleet.yaml", ""), ("muster unit export --select 'realm=shop' -o json", "")],
    ),
    (
        "unit tasks",
        &[
            ("muster unit tasks till-7:shop/files", ""),
            ("muster unit tasks till-7:shop/files --task 12", ""),
            ("muster unit tasks till-7:shop/files --follow", "until its newest task has ended"),
        ],
    ),
    ("unit run", &[("muster unit run default/server", ""), ("muster unit run --play default/till", "")]),
    (
        "unit stop",
        &[
            ("muster unit stop default/server", ""),
            ("muster unit stop --signal KILL default/server", "one that hangs"),
            ("muster unit stop --select 'realm=shop and role=web' --yes", ""),
        ],
    ),
    ("unit restart", &[("muster unit restart default/config", "")]),
    ("unit signal", &[("muster unit signal HUP default/server", ""), ("muster unit signal usr1 --all --yes", "")]),
    ("unit freeze", &[("muster unit freeze default/server", "")]),
    ("unit thaw", &[("muster unit thaw default/server", "")]),
    (
        "unit quota",
        &[
            ("muster unit quota default/server --memory 128M --cpu 1.5 --pids none", ""),
            ("muster unit quota default/shop --disk 2G", "a container"),
        ],
    ),
    (
        "unit logs",
        &[
            ("muster unit logs default/server -f", ""),
            ("muster unit logs --select 'realm=prod and role=web' -n 5", ""),
            ("muster unit logs default/server -t --since 10m", ""),
            ("muster unit logs default/server --since '2026-01-31 12:00:00' --until 2026-01-31T13:00:00+01:00", ""),
        ],
    ),
    (
        "unit exec",
        &[
            ("muster unit exec default/shop -- ls -l /srv", "on the only host that has it"),
            ("muster unit exec shop-7:default/shop --user www-data -- ls -l /srv", ""),
            ("muster unit exec default/shop --all -- date", "on each host that has it"),
        ],
    ),
    (
        "unit config",
        &[("muster unit config default/server", ""), ("muster unit config default/server --effective", "")],
    ),
    (
        "unit upgrade",
        &[
            ("muster unit upgrade --dry-run", "show what is behind"),
            ("muster unit upgrade default/server", ""),
            ("muster unit upgrade --select 'role=server and label.wave=1' --artifact server@2.1.0 --yes", ""),
        ],
    ),
    (
        "unit hold",
        &[
            ("muster unit hold default/server --reason 'debugging with Anna'", ""),
            ("muster unit hold --select 'realm=prod and role=web' --expires 1h", ""),
        ],
    ),
    ("unit unhold", &[("muster unit unhold default/server", "")]),
    ("unit retire", &[("muster unit retire default/server", ""), ("muster unit retire --select 'realm=old'", "")]),
    (
        "unit label",
        &[
            ("muster unit label default/server --set tier=gold --unset site", ""),
            ("muster unit label --select 'realm=prod and label.wave=1' --set wave=2", ""),
        ],
    ),
    (
        "unit detach",
        &[
            ("muster unit detach till-7:shop/till", ""),
            ("muster unit detach shop/till --all", "on each host that has it"),
        ],
    ),
    ("unit rm", &[("muster unit rm default/server", "after `muster unit retire default/server`")]),
    ("yuno play", &[("muster yuno play default/till", "")]),
    ("yuno pause", &[("muster yuno pause default/till", "")]),
    (
        "yuno command",
        &[
            ("muster yuno command default/till level", ""),
            ("muster yuno command default/till default/scale set-level level=3", "two yunos"),
            ("muster yuno command --all default/till load --json '{\"items\": [1, 2]}'", ""),
        ],
    ),
    ("yuno stats", &[("muster yuno stats default/till", ""), ("muster yuno stats --all default/till", "")]),
    ("container clone", &[("muster container clone default/shop default/shop-2 --run", "")]),
    (
        "container adopt",
        &[
            ("muster host show shop-7", "lists all containers"),
            ("muster container adopt old-web --as default/web --host shop-7", ""),
        ],
    ),
    (
        "deployment apply",
        &[
            ("muster deployment apply till.yaml --dry-run", ""),
            ("muster deployment apply till.yaml", "until all online hosts have verified it"),
            ("muster deployment apply ./shop --no-wait", "all documents in a folder"),
            ("muster deployment export shop/till | muster deployment apply -", "changes nothing"),
        ],
    ),
    (
        "deployment show",
        &[
            ("muster deployment show shop/till", ""),
            ("muster deployment show shop/till --state failed --state away", "hosts in these states"),
        ],
    ),
    ("deployment export", &[("muster deployment export shop/till --version 3 > till.yaml", "")]),
    ("deployment history", &[("muster deployment history shop/till", "")]),
    (
        "deployment changes",
        &[
            ("muster deployment changes", "with cordons and variables"),
            ("muster deployment changes shop/till -n 10", ""),
        ],
    ),
    (
        "deployment diff",
        &[
            ("muster deployment diff shop/till", "what the present version changed"),
            ("muster deployment diff shop/till 3 5", ""),
        ],
    ),
    (
        "deployment rollback",
        &[
            ("muster deployment rollback shop/till", "to the version before"),
            ("muster deployment rollback shop/till --to 3 --dry-run", ""),
        ],
    ),
    (
        "deployment rm",
        &[
            ("muster deployment rm shop/till --dry-run", ""),
            ("muster deployment rm shop/till", "stop and remove its units everywhere"),
            ("muster deployment rm shop/till --keep", "keep its units running"),
        ],
    ),
    (
        "deployment watch",
        &[
            ("muster deployment watch shop/till", ""),
            ("muster deployment watch shop/till --timeout 1h -o json", "an event in each line"),
        ],
    ),
    (
        "deployment adopt",
        &[
            ("muster deployment adopt shop/till shop/till --host till-7", ""),
            ("muster deployment adopt shop/till shop/till --all", ""),
        ],
    ),
    (
        "deployment confirm",
        &[
            ("muster deployment confirm --dry-run", "all hosts that wait for it"),
            ("muster deployment confirm till-7 till-8", ""),
            ("muster deployment confirm --all --replace", "hosts take what the console has"),
        ],
    ),
    ("deployment sync", &[("muster deployment sync", "")]),
    (
        "rollout ls",
        &[
            ("muster rollout ls", "the last one of each deployment"),
            ("muster rollout ls shop/till", "all of one deployment"),
        ],
    ),
    ("rollout show", &[("muster rollout show shop/till", "its waves, and why hosts wait")]),
    (
        "rollout hosts",
        &[("muster rollout hosts shop/till", ""), ("muster rollout hosts shop/till --version 4 --outcome failed", "")],
    ),
    (
        "rollout watch",
        &[
            ("muster rollout watch shop/till", ""),
            ("muster rollout watch shop/till --timeout 1h -o json", "the whole rollout in each line"),
        ],
    ),
    ("rollout pause", &[("muster rollout pause shop/till", "hosts that change now finish")]),
    ("rollout resume", &[("muster rollout resume shop/till", "in spite of the failures so far")]),
    (
        "rollout promote",
        &[
            ("muster rollout promote shop/till", "the next wave begins"),
            ("muster rollout promote shop/till --version 4", "only if that is the present one"),
        ],
    ),
    ("rollout retry", &[("muster rollout retry shop/till", "")]),
    (
        "rollout cancel",
        &[
            ("muster rollout cancel shop/till", "hosts keep what they have"),
            ("muster rollout cancel shop/till --rollback --yes", "hosts go back"),
        ],
    ),
    ("rollout release", &[("muster rollout release shop/till --host till-7", "")]),
    ("deployment schema", &[("muster deployment schema > deployment.schema.json", "for an editor")]),
    (
        "var set",
        &[
            ("muster var set upstream https://bank.example", "for all hosts"),
            ("muster var set lanes 3 --json --label size=large", ""),
            ("muster var set lanes 4 --json --host till-7", "instead of the label's"),
        ],
    ),
    ("var ls", &[("muster var ls", ""), ("muster var ls lanes", "in all layers")]),
    ("var rm", &[("muster var rm lanes --host till-7", "")]),
    (
        "plan",
        &[
            ("muster plan till.yaml", "what each host of its target would change"),
            ("muster plan till.yaml -o json", "with all hosts, for programs"),
            (
                "muster deployment apply till.yaml --plan 4c1d2f0e8a7b6c5d4e3f2a1b0c9d8e7f6a5b4c3d2e1f0a9b8c7d6e5f4a3b2c1d",
                "",
            ),
        ],
    ),
    (
        "render",
        &[
            ("muster render shop.yaml --host till-7", "env and args of its units"),
            ("echo '{{ fact.cpus }}' | muster render - --host till-7", "a template of its own"),
            ("muster render --unit shop/till --host till-7", "what was rendered for a unit that is there"),
        ],
    ),
    (
        "snapshot",
        &[
            ("muster snapshot create before-upgrade", ""),
            ("muster snapshot activate before-upgrade --dry-run", ""),
            ("muster snapshot activate before-upgrade", ""),
        ],
    ),
    ("snapshot create", &[("muster snapshot create before-upgrade --host till-7", "")]),
    ("snapshot diff", &[("muster snapshot diff before-upgrade", "")]),
    (
        "snapshot activate",
        &[
            ("muster snapshot activate before-upgrade --dry-run", ""),
            ("muster snapshot activate before-upgrade --all", ""),
        ],
    ),
    ("snapshot deactivate", &[("muster snapshot deactivate before-upgrade", "")]),
    ("snapshot rm", &[("muster snapshot rm before-upgrade", "")]),
    ("alert ls", &[("muster alert ls", ""), ("muster alert ls --select 'label.site=north' --sort severity", "")]),
    ("alert history", &[("muster alert history --host till-7", "")]),
    (
        "rule set",
        &[
            ("muster rule set disk --level 80% --clear 75% --for 10m", ""),
            ("muster rule set till-memory --metric unit_memory --of shop/till --level 512MiB", ""),
            ("muster rule set cpu --host shop-7 --enabled no", ""),
        ],
    ),
    ("rule rm", &[("muster rule rm disk", "")]),
    ("silence create", &[("muster silence create --host till-7 --for 4h --reason 'new disk'", "")]),
    ("silence rm", &[("muster silence rm 0198c1f2", "")]),
    (
        "metric query",
        &[
            ("muster metric query muster_host_cpu_busy_ratio", ""),
            ("muster metric query 'topk(3, muster_unit_memory_resident_bytes)'", ""),
            ("muster metric query 'avg by (hostname) (muster_host_cpu_busy_ratio)' --since 1h --step 5m", ""),
            ("muster metric query 'muster_host_load_1m[10m]' --csv", ""),
        ],
    ),
    ("metric ls", &[("muster metric ls", ""), ("muster metric ls disk", "")]),
    (
        "metric export",
        &[
            ("muster metric export muster_host_cpu_busy_ratio --since 7d > cpu.lines", ""),
            ("muster metric export '{hostname=\"web1\"}' --since 2026-01-01 --until '2026-01-31 12:00:00' --csv", ""),
        ],
    ),
    (
        "top",
        &[
            ("muster top", ""),
            ("muster top units --sort memory", ""),
            ("muster top --select 'label.site=north'", ""),
            ("muster top units --once -o json", ""),
        ],
    ),
    (
        "backup create-key",
        &[
            ("muster backup create-key --out key.txt", "on another machine than the console's"),
            ("muster backup create-key", "print the private key, once"),
        ],
    ),
    (
        "backup create",
        &[
            ("muster backup create", "a file in this folder, with the time in its name"),
            ("muster backup create --artifacts --series --out all.tar.age", ""),
        ],
    ),
    (
        "backup verify",
        &[
            ("muster backup verify all.tar.age --identity key.txt", ""),
            ("pass show muster-backup | muster backup verify all.tar.age --identity -", ""),
        ],
    ),
    (
        "backup restore",
        &[
            ("muster backup restore a.tar.age --identity key.txt --data-dir /var/lib/muster/console", ""),
            (
                "muster backup restore a.tar.age --identity key.txt --data-dir ./old --replace",
                "in place of what is left",
            ),
        ],
    ),
    (
        "clock confirm",
        &[("muster clock confirm", "after a look at `date -u` here and elsewhere"), ("muster clock confirm --yes", "")],
    ),
    (
        "dashboard export",
        &[
            ("muster dashboard export --out /var/lib/grafana/muster --program grafana --language promql", ""),
            ("muster dashboard export --out /etc/prometheus/muster --program prometheus", ""),
        ],
    ),
    (
        "ycommand",
        &[
            ("muster ycommand -c 'install-binary content64=$$(my_role)'", ""),
            ("muster ycommand -c 'create-yuno realm_id=shop yuno_role=my_role yuno_name=my_name'", ""),
            ("muster ycommand -c 'kill-yuno yuno_role=my_role'", ""),
        ],
    ),
    (
        "login",
        &[
            ("muster login --new-link", "on the console's machine: print a link"),
            ("muster login LINK", "elsewhere: sign in with it"),
        ],
    ),
    ("login revoke", &[("muster login revoke 0a1b2c3d4e", "")]),
    (
        "completions",
        &[
            ("muster completions bash > ~/.local/share/bash-completion/completions/muster", ""),
            ("muster completions zsh > ~/.zfunc/_muster", ""),
            ("muster completions fish > ~/.config/fish/completions/muster.fish", ""),
        ],
    ),
    ("man", &[("muster man --out /usr/local/share/man/man1", "")]),
];

/// The verbs that need no example: they take nothing, or nothing that an example could explain.
#[cfg(test)]
pub(super) const NEED_NONE: &[&str] = &[
    "console certificates",
    "context ls",
    "token ls",
    "unit create files",
    "unit create packages",
    "artifact ls",
    "config ls",
    "secret ls",
    "secret rotate-key",
    "realm ls",
    "realm endpoints",
    "snapshot ls",
    "rule ls",
    "silence ls",
    "metric stores",
    "login ls",
    "backup ls",
    "clock show",
    "deployment ls",
];
