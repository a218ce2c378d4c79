//! Options of `create` for probes, and how probes are shown.

use std::{net::IpAddr, time::Duration};

use clap::Args;
use muster_base::argv;
use muster_topics::probe::{Check, Http, Port, Probe, Probes, Tcp, Which};

/// How it is found out whether a unit is well.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Probes")]
#[group(id = "probes")]
pub struct ProbeOptions {
    /// Probe that finds out whether it has started
    ///
    /// Until it succeeds no other probe is tried, and the unit is not running; after --start-timeout it is ended.
    /// Forms: tcp:PORT, a connection; http:PORT/PATH, a request that is answered with a status from 200 to 399;
    /// exec:'PROGRAM ARG…', a command (no shell) that ends with exit code 0, run as the unit is, and inside if that is
    /// a container. PORT is the name of an endpoint that the unit provides, or a number, of loopback or as
    /// ADDRESS:PORT; of a container in a network of its own it is the port inside to which an endpoint leads.
    #[arg(long = "start", value_name = "PROBE", value_parser = parse)]
    start: Option<Probe>,
    /// Probe that finds out whether it can do its work
    ///
    /// The unit is running once it succeeds. When it fails later the unit goes on, is shown as unready, and units that
    /// require it wait. Settings may stand before the form, each with a comma behind it: every=10s, within=5s (for an
    /// answer), failures=3 and successes=1 (in a row), and status=204 for http. Such as
    /// every=5s,failures=2,http:8080/ready.
    #[arg(long = "ready", value_name = "PROBE", value_parser = parse)]
    ready: Option<Probe>,
    /// Probe that finds out whether it hangs
    ///
    /// If it fails, the unit is ended, and started again as after any other failure.
    #[arg(long = "live", value_name = "PROBE", value_parser = parse)]
    live: Option<Probe>,
}

impl ProbeOptions {
    /// As a field of a spec.
    #[must_use]
    pub fn into_field(self) -> Probes {
        let Self { start, ready, live } = self;
        Probes { start, ready, live }
    }
}

/// `every=5s,failures=2,http:8080/ready`
fn parse(text: &str) -> Result<Probe, String> {
    let usage = || {
        "use tcp:PORT, http:PORT/PATH or exec:'PROGRAM ARG…', with settings such as every=5s, in front of it".to_owned()
    };
    let (mut settings, mut rest) = (Vec::new(), text);
    let check = loop {
        if let Some((kind @ ("tcp" | "http" | "exec"), what)) = rest.split_once(':') {
            break parse_check(kind, what)?;
        }
        let (setting, after) = rest.split_once(',').ok_or_else(usage)?;
        settings.push(setting.split_once('=').ok_or_else(usage)?);
        rest = after;
    };
    let mut probe = Probe::new(check);
    for (name, value) in settings {
        set(&mut probe, name, value).map_err(|why| format!("{name}={value}: {why}"))?;
    }
    Ok(probe)
}

fn set(probe: &mut Probe, name: &str, value: &str) -> Result<(), String> {
    let millis = || {
        let time: Duration = value.parse::<humantime::Duration>().map_err(|error| error.to_string())?.into();
        u64::try_from(time.as_millis()).map_err(|error| error.to_string())
    };
    let count = || value.parse::<u32>().map_err(|error| error.to_string());
    match (name, &mut probe.check) {
        ("every", _) => probe.interval_ms = millis()?,
        ("within", _) => probe.timeout_ms = millis()?,
        ("failures", _) => probe.failures = count()?,
        ("successes", _) => probe.successes = count()?,
        ("status", Check::Http(http)) => http.status = Some(value.parse().map_err(|_| "no status, such as 204")?),
        ("status", _) => return Err("only http has one".to_owned()),
        _ => return Err("there is every, within, failures and successes, and status for http".to_owned()),
    }
    Ok(())
}

fn parse_check(kind: &str, what: &str) -> Result<Check, String> {
    match kind {
        "exec" => argv::split(what).map(Check::Exec).map_err(|error| error.to_string()),
        "tcp" => {
            let (port, address) = parse_port(what)?;
            Ok(Check::Tcp(Tcp { port, address }))
        }
        _ => {
            let (place, path) = what.find('/').map_or((what, "/"), |at| what.split_at(at));
            let (port, address) = parse_port(place)?;
            Ok(Check::Http(Http { port, address, path: path.to_owned(), status: None }))
        }
    }
}

/// Parses a port, or the name of an endpoint, with an optional address before it.
fn parse_port(text: &str) -> Result<(Port, Option<IpAddr>), String> {
    let (address, port) = match text.rsplit_once(':') {
        None => (None, text),
        Some((address, port)) => {
            let plain = address.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(address);
            let address =
                plain.parse().map_err(|_| format!("{address:?} is not an address such as 10.0.0.1 or [::1]"))?;
            (Some(address), port)
        }
    };
    let is_number = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    let port = match is_number {
        true => port.parse().map(Port::Number).map_err(|_| format!("{port} is not a port: use 1 to 65535")),
        false => port
            .parse()
            .map(Port::Endpoint)
            .map_err(|error| format!("{port:?} is neither a port nor the name of an endpoint: {error}")),
    }?;
    Ok((port, address))
}

/// A probe on one line, for people.
#[must_use]
pub fn shown(which: Which, probe: &Probe) -> String {
    let span = |ms| humantime::format_duration(Duration::from_millis(ms));
    let Probe { check, interval_ms, timeout_ms, failures, successes } = probe;
    let counts = match which {
        Which::Start => String::new(),
        Which::Ready | Which::Live => format!(", fails after {failures}"),
    };
    let successes = if *successes == 1 { String::new() } else { format!(", succeeds after {successes}") };
    format!("{check} every {}, within {}{counts}{successes}", span(*interval_ms), span(*timeout_ms))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, wanted: Option<&str>) {
        let found = parse(text);
        assert_eq!(found.as_ref().ok().map(|probe| shown(Which::Ready, probe)).as_deref(), wanted, "{text}: {found:?}");
    }

    #[test]
    fn probe_options_parse() {
        check("tcp:80", Some("tcp:80 every 10s, within 5s, fails after 3"));
        check("tcp:[::1]:80", Some("tcp:[::1]:80 every 10s, within 5s, fails after 3"));
        check("http:web", Some("http:web/ every 10s, within 5s, fails after 3"));
        check(
            "every=5s,failures=2,http:10.0.0.1:80/a:b,c=d",
            Some("http:10.0.0.1:80/a:b,c=d every 5s, within 5s, fails after 2"),
        );
        check(
            "within=1s 500ms,successes=2,status=204,http:80/a",
            Some("http:80/a (204) every 10s, within 1s 500ms, fails after 3, succeeds after 2"),
        );
        for wrong in [
            "",
            "80",
            "tcp",
            "udp:80",
            "tcp:",
            "tcp:70000",
            "tcp:a:80",
            "tcp:a b",
            "status=204,tcp:80",
            "every=5,tcp:80",
            "failures=x,tcp:80",
            "often=1,tcp:80",
            "every=5s",
            "every,tcp:80",
            "exec:",
            "exec:'a",
            "tcp:80/x",
        ] {
            check(wrong, None);
        }
    }

    #[test]
    fn probe_command_may_contain_commas_and_colons() {
        let probe = parse("every=1m,exec:sh -c 'test -e a:b,c=d'").unwrap();
        assert_eq!(probe.check, Check::Exec(["sh", "-c", "test -e a:b,c=d"].map(str::to_owned).to_vec()));
        assert_eq!(probe.interval_ms, 60_000);
    }
}
