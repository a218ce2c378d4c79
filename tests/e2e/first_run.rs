//! `muster up`: the first start, later starts, and obstacles.

use std::{fs, net::TcpListener, os::unix::fs::PermissionsExt, process::Command};

use nix::sys::signal::Signal;

use crate::{
    fleet::{Fleet, Home, Run, Running, eventually},
    roles::Roles,
};

#[test]
fn first_start_shows_host_and_sample() {
    let fleet = Fleet::start_with(&[]);
    for words in
        ["login --new-link", "mqtts://127.0.0.1:", "muster exec", "muster unit logs", fleet.data().to_str().unwrap()]
    {
        assert!(fleet.summary.contains(words), "{words} is not in {}", fleet.summary);
    }
    let hosts = fleet.json(&["host", "ls"]);
    assert_eq!(hosts[0]["presence"]["state"], "online");
    let unit = fleet.unit_in_phase("default/hello", "running");
    assert_eq!(unit["desired"]["run"], "running");
    eventually("a line of the sample's log", || {
        let log = fleet.muster(&["yuno", "logs", "default/hello"]);
        if log.code == 0 && log.stdout.contains("hello") { Ok(()) } else { Err(format!("{log:?}")) }
    });
}

#[test]
fn sign_ins_are_listed_and_ended() {
    let fleet = Fleet::start();
    let link = fleet.sign_in_link();
    let other = crate::fleet::Home::new();
    other.muster(&["login", &link]).expect_code(0);
    other.muster(&["login", &link]).expect_code(3).expect_stderr("muster login --new-link");
    let listed = fleet.json(&["login", "ls"]);
    let newest = &listed[0];
    assert_eq!((listed.as_array().unwrap().len(), newest["kind"].as_str()), (2, Some("program")), "{listed}");
    assert!(newest["expires_ms"].as_i64() > newest["created_ms"].as_i64());
    other.muster(&["host", "ls"]).expect_code(0);
    fleet.ok(&["login", "revoke", newest["id"].as_str().unwrap()]);
    other.muster(&["host", "ls"]).expect_code(3);
    fleet.ok(&["host", "ls"]);
    fleet.muster(&["login", "revoke", newest["id"].as_str().unwrap()]).expect_code(3).expect_stderr("muster login ls");
    let empty = other.path().to_str().unwrap();
    other.muster(&["login", "--new-link", "--data-dir", empty]).expect_code(1).expect_stderr("--data-dir DIR");
}

#[test]
fn join_token_is_read_from_a_file_or_input() {
    let roles = crate::roles::Roles::start();
    let (config, file) = (roles.agent_config(), roles.home.path().join("token"));
    std::fs::write(&file, format!("{}\n", roles.token())).unwrap();
    let agent = roles.agent(&["--join-file", file.to_str().unwrap()]);
    roles.wait_for_host("online");
    agent.stop();
    // The other ways lead to the same: a token that is none is named with where it came from.
    let shell = |script: &str| {
        let mut shell = std::process::Command::new("sh");
        roles.home.dress(&mut shell);
        let program = roles.home.command().get_program().to_owned();
        crate::fleet::Run::of(&["sh"], shell.arg("-c").arg(script).arg("sh").arg(program).arg(&config))
    };
    shell("echo wrong | \"$1\" agent --config \"$2\" --join -")
        .expect_code(2)
        .expect_stderr("--join -: not a join token");
    shell("MUSTER_JOIN=wrong \"$1\" agent --config \"$2\"").expect_code(2).expect_stderr("not a join token");
}

#[test]
fn token_of_loopback_console_has_a_hint() {
    let fleet = Fleet::start();
    let made = fleet.muster(&["token", "create"]);
    let token = made.stdout.trim().to_owned();
    made.expect_code(0)
        .expect_stderr(&format!("on the other machine: muster agent --join {token}"))
        .expect_stderr("which no other machine can reach")
        .expect_stderr("hint: stop `muster up` and start it with `--listen ADDRESS`");
    let made = fleet.json(&["token", "create"]);
    assert!(made["warning"]["hint"].as_str().unwrap().contains("--listen"), "{made}");
}

#[test]
fn start_that_leaves_other_hosts_offline_says_so() {
    let mut fleet = Fleet::start_with(&["--no-sample", "--listen", "0.0.0.0"]);
    let token = fleet.ok(&["token", "create"]);
    let mut command = fleet.home.command();
    let folder = fleet.home.path().join("other");
    let other = Running::start(command.args(["agent", "--join", token.trim(), "--data-dir"]).arg(&folder));
    eventually("two hosts", || {
        let hosts = fleet.json(&["host", "ls"]);
        if hosts.as_array().unwrap().len() == 2 { Ok(()) } else { Err(hosts.to_string()) }
    });
    other.stop();
    let warning = "connect to 0.0.0.0, where it no longer listens";
    let printed = fleet.stop();
    assert!(!printed.contains(warning), "{printed}");
    fleet.restart_with(&["--no-sample"]);
    let printed = fleet.stop();
    assert!(printed.contains(warning) && printed.contains("--listen 0.0.0.0"), "{printed}");
    fleet.restart_with(&["--no-sample", "--listen", "0.0.0.0"]);
    let printed = fleet.stop();
    assert!(!printed.contains(warning), "{printed}");
}

#[test]
fn keys_and_stores_are_private() {
    let fleet = Fleet::start();
    let mut folders = vec![fleet.home.path().join("share"), fleet.home.path().join("config")];
    let mut secrets = 0;
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() {
                folders.push(path);
            } else if name.contains("key") || name.contains("context") || name.ends_with(".db") {
                let mode = fs::metadata(&path).unwrap().permissions().mode() & 0o077;
                assert_eq!(mode, 0, "{} is open to others", path.display());
                secrets += 1;
            }
        }
    }
    assert!(secrets >= 5, "only {secrets} secret files were found");
}

#[test]
fn restarted_up_resumes() {
    let mut fleet = Fleet::start_with(&[]);
    let host = fleet.host();
    let pid = fleet.unit_in_phase("default/hello", "running")["observed"]["pid"].clone();
    let printed = fleet.stop();
    assert!(printed.contains("default/hello"), "it does not say what it leaves running: {printed}");

    fleet.again();
    assert_eq!(fleet.host(), host);
    let unit = fleet.unit_in_phase("default/hello", "running");
    assert_eq!(unit["observed"]["pid"], pid, "the yuno was started a second time");
}

#[test]
fn killed_up_leaves_its_yunos_running() {
    let mut fleet = Fleet::start_with(&[]);
    let pid = fleet.unit_in_phase("default/hello", "running")["observed"]["pid"].clone();
    fleet.kill();
    fleet.again();
    fleet.unit("default/hello", |unit| unit["observed"]["phase"] == "running" && unit["observed"]["pid"] == pid);
}

#[test]
fn removed_sample_stays_removed() {
    let mut fleet = Fleet::start_with(&[]);
    fleet.unit_in_phase("default/hello", "running");
    fleet.ok(&["unit", "retire", "default/hello"]);
    fleet.ok(&["yuno", "rm", "default/hello"]);
    fleet.stop();
    fleet.again();
    assert_eq!(fleet.json(&["unit", "ls"]), serde_json::json!([]));
}

#[test]
fn a_second_instance_on_the_same_data_is_refused() {
    let fleet = Fleet::start();
    fleet
        .muster(&["up", "--web-port", "0", "--mqtt-port", "0", "--hosts-port", "0"])
        .expect_code(1)
        .expect_stderr("hint:");
    assert_eq!(fleet.json(&["host", "ls"])[0]["presence"]["state"], "online", "the first one goes on");
}

#[test]
fn taken_port_is_named_and_nothing_created() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    for flag in ["--web-port", "--mqtt-port", "--hosts-port"] {
        let home = Home::new();
        let mut args = vec!["up"];
        for other in ["--web-port", "--mqtt-port", "--hosts-port"] {
            args.extend([other, if other == flag { &port } else { "0" }]);
        }
        let run = home.muster(&args).expect_code(1).expect_stderr(&port);
        assert!(run.stderr.contains("hint:") && run.stderr.contains(flag), "{}", run.stderr);
        assert!(!home.path().join("config/muster/context.toml").exists(), "a context of nothing was written");
    }
}

#[test]
fn uncreatable_folder_is_named() {
    let home = Home::new();
    fs::write(home.path().join("file"), "").unwrap();
    let data = home.path().join("file/data");
    home.muster(&[
        "up",
        "--data-dir",
        data.to_str().unwrap(),
        "--web-port",
        "0",
        "--mqtt-port",
        "0",
        "--hosts-port",
        "0",
    ])
    .expect_code(1)
    .expect_stderr(data.to_str().unwrap());
}

#[test]
fn sigterm_stops_cleanly() {
    let mut fleet = Fleet::start();
    let up: &mut Running = fleet.up();
    up.signal(Signal::SIGTERM);
    let up = fleet.stop();
    assert!(!up.contains("panicked"), "{up}");
}

#[test]
fn relative_folders_of_the_environment_are_ignored_and_given_ones_are_made_absolute() {
    let home = Home::new();
    let dress = |mut command: Command| {
        command.env("XDG_CONFIG_HOME", "cfg").env("XDG_DATA_HOME", "dat");
        command
    };
    let mut command = dress(home.command());
    command.args(["up", "--data-dir", "./try", "--web-port=0", "--mqtt-port=0", "--hosts-port=0"]);
    let mut up = Running::start(&mut command);
    up.wait_for("a ready muster up", |printed| printed.contains("Ctrl-C").then_some(()));
    assert!(up.printed().contains(home.path().join("try").to_str().unwrap()), "{}", up.printed());
    // The same console is known from everywhere, and what has to run in another folder runs.
    fs::create_dir(home.path().join("elsewhere")).unwrap();
    eventually("the sample runs", || {
        let mut command = dress(home.command());
        command.current_dir(home.path().join("elsewhere")).args(["-o", "json", "unit", "show", "default/hello"]);
        let run = Run::of(&["unit", "show"], &mut command);
        if run.code == 0 && run.stdout.contains("\"running\"") && run.stdout.contains("\"pid\"") {
            Ok(())
        } else {
            Err(format!("{}{}", run.stdout, run.stderr))
        }
    });
    assert!(home.path().join(".config/muster/context.toml").exists());
    for stray in ["cfg", "dat", "elsewhere/cfg", "elsewhere/dat"] {
        assert!(!home.path().join(stray).exists(), "{stray}");
    }
    up.stop();
}

#[test]
fn context_of_another_console_stays_current() {
    let fleet = Fleet::start();
    let path = fleet.home.path().join("config/muster/context.toml");
    let data = fleet.home.path().join("second");
    let mut second = Running::start(fleet.home.command().args([
        "up",
        "--no-sample",
        "--web-port=0",
        "--mqtt-port=0",
        "--hosts-port=0",
        "--data-dir",
        data.to_str().unwrap(),
    ]));
    second.wait_for("the wrong name", |printed| printed.contains("--context second exec").then_some(()));
    let contexts = fs::read_to_string(&path).unwrap();
    assert!(contexts.contains("current = \"local\"") && contexts.contains("[contexts.second]"), "{contexts}");
    let (_, printed) = second.stop();
    assert!(printed.contains("The current context stays \"local\""), "{printed}");
}

#[test]
fn join_does_not_take_over_the_present_agent() {
    let roles = Roles::start();
    let data = roles.home.path().join("data");
    let start = |token: &str| {
        let mut command = roles.home.command();
        command.env("XDG_DATA_HOME", &data).args(["agent", "--join", token]);
        command
    };
    let token = roles.token();
    let first = Running::start(&mut start(&token));
    roles.wait_for_host("online");
    first.kill();
    let folder = data.join("muster-agent");
    assert!(folder.join("identity.json").exists(), "it is where XDG_DATA_HOME says");
    let another = roles.token();
    let output = start(&another).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains(folder.to_str().unwrap()) && said.contains("--data-dir"), "{said}");
    // The same again is the same agent.
    let again = Running::start(&mut start(&token));
    roles.wait_for_host("online");
    again.kill();
}
