//! `muster var`: variables of hosts, in layers.

use clap::{Args, Subcommand};
use muster_api::{NewVar, Var, VarLayer, host_names::HostNames};
use muster_base::{
    clock,
    failure::{Failure, FailureKind},
};
use muster_topics::{
    canonical,
    name::{HostId, LabelValue, Name},
};
use reqwest::Method;
use serde_json::Value;

use super::{policy::parse_label, print, session::CliSession};

/// Verbs on variables.
#[derive(Subcommand, Clone, Debug)]
pub enum VarVerb {
    /// Set a variable, for all hosts or for those of a layer
    #[command(
        after_long_help = "A host gets the variables of all its layers. One of a host stands before one of the same \
                           name of a label, that before one of a realm, and that before one of the fleet.\n\n\
                           Everybody who may use the console sees variables: `muster secret set` keeps what nobody \
                           may see."
    )]
    Set {
        /// Name
        name: Name,
        /// Value: text, or with --json any JSON of at most 4 KiB and 32 levels
        #[arg(allow_hyphen_values = true)]
        value: String,
        /// Read the value as JSON: a number, true, a list, an object
        #[arg(long)]
        json: bool,
        /// Layer
        #[command(flatten)]
        layer: LayerOptions,
    },
    /// List variables, with their layers
    Ls {
        /// Name [default: all]
        name: Option<Name>,
    },
    /// Remove a variable from a layer
    Rm {
        /// Name
        name: Name,
        /// Layer
        #[command(flatten)]
        layer: LayerOptions,
    },
}

/// The layer of a variable; the fleet's without an option.
#[derive(Args, Clone, Debug)]
#[group(multiple = false)]
pub struct LayerOptions {
    /// Realm
    ///
    /// For hosts that have this realm.
    #[arg(long)]
    realm: Option<Name>,
    /// Label of hosts
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_label)]
    label: Option<(Name, LabelValue)>,
    /// Host, by id or hostname
    #[arg(long)]
    host: Option<String>,
}

impl LayerOptions {
    fn into_layer(self) -> VarLayer {
        match (self.realm, self.label, self.host) {
            (Some(realm), _, _) => VarLayer::Realm(realm),
            (None, Some((name, value)), _) => VarLayer::Label(name, value),
            (None, None, Some(host)) => VarLayer::Host(host),
            (None, None, None) => VarLayer::Fleet,
        }
    }
}

/// Runs the verb.
///
/// # Errors
/// If it fails.
pub async fn run(verb: VarVerb, session: &CliSession) -> Result<(), Failure> {
    match verb {
        VarVerb::Set { name, value, json, layer: of } => {
            let value = if json { parse_json(&value)? } else { Value::String(value) };
            let set: Var = session.client.post("vars", &NewVar { layer: of.into_layer(), name, value }).await?;
            print::say(format_args!("{} is {} ({})", set.name, shown(&set.value), layer(&set, &HostNames::default())));
            session.printer.data(&[set])
        }
        VarVerb::Ls { name } => {
            let mut vars: Vec<Var> = session.client.get("vars", &[]).await?;
            vars.retain(|var| name.as_ref().is_none_or(|name| var.name == *name));
            let now_ms = clock::now_ms();
            let hosts = |var: &Var| match &var.layer {
                VarLayer::Host(id) => Some((id.parse().ok()?, var.hostname.clone()?)),
                _ => None,
            };
            let hosts: Vec<(HostId, String)> = vars.iter().filter_map(hosts).collect();
            let names = HostNames::new(hosts.iter().map(|(host, name)| (*host, name.as_str())));
            let row = |var: &Var| {
                vec![
                    var.name.to_string(),
                    layer(var, &names),
                    shown(&var.value),
                    print::age(var.set_ms, now_ms),
                    var.operator.to_string(),
                ]
            };
            let empty = "no variables; `muster var set NAME VALUE` sets one";
            session.printer.list(&vars, &["VARIABLE", "LAYER", "VALUE", "SET", "BY"], row, empty)
        }
        VarVerb::Rm { name, layer } => {
            let layer = layer.into_layer();
            let query = [("layer", layer.to_string()), ("name", name.to_string())];
            session.client.order_with(Method::DELETE, "vars", &query).await?;
            print::say(format_args!("{name} is removed ({layer})"));
            Ok(())
        }
    }
}

/// A layer, in which a host is shown by its name.
fn layer(var: &Var, names: &HostNames<'_>) -> String {
    match (&var.layer, &var.hostname) {
        (VarLayer::Host(id), Some(hostname)) => match id.parse() {
            Ok(host) => format!("host:{}", names.show(host, hostname)),
            Err(_) => var.layer.to_string(),
        },
        (layer, _) => layer.to_string(),
    }
}

fn parse_json(text: &str) -> Result<Value, Failure> {
    canonical::parse_value(text.as_bytes()).map_err(|error| {
        Failure::new(FailureKind::Usage, format!("the value: {error}"))
            .hint("without --json the value is taken as text")
    })
}

fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        value => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(subcommand)]
        verb: VarVerb,
    }

    #[test]
    fn value_that_hosts_would_refuse_is_refused() {
        assert_eq!(parse_json("[1, null]").unwrap(), serde_json::json!([1, null]));
        for text in ["18446744073709551616", "1e300", r#"{"a": 1, "a": 2}"#, &"[".repeat(100), &"[".repeat(40)] {
            let failure = parse_json(text).unwrap_err();
            assert_eq!(failure.kind, FailureKind::Usage, "{text}");
        }
    }

    #[test]
    fn layer_is_that_of_its_option() {
        for (line, layer) in [
            ("var set a 1", "fleet"),
            ("var set a 1 --realm shop", "realm:shop"),
            ("var set a 1 --label site=north", "label:site=north"),
            ("var set a -1 --host till-7", "host:till-7"),
        ] {
            let VarVerb::Set { layer: options, .. } = Line::parse_from(line.split(' ')).verb else { panic!("{line}") };
            assert_eq!(options.into_layer().to_string(), layer);
        }
        assert!(Line::try_parse_from("var rm a --realm shop --host till-7".split(' ')).is_err());
    }
}
