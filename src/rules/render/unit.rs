//! The templates of a unit's spec, and the values that they name.
//!
//! A spec carries the values that its templates name ([`fill`]), so that what is rendered of it is a function of the spec, its
//! endpoints and its secrets: a changed value is another revision, and an earlier revision is rendered as it was.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr},
};

use muster_topics::{
    common::ProgramSpec,
    container::ContainerSpec,
    diagnostic::Diagnostic,
    endpoint::{Endpoint, Protocol},
    name::Name,
    unit::{MASK, Spec, YunoSpec},
};
use serde_json::Value;

use super::{RESULT_MAX_BYTES, RenderFault, RenderValues, TemplateNames, config, names, render};
use crate::port_lease::{EndpointWiring, wrong_placeholders};

/// A template of a spec.
struct SpecTemplate<'a> {
    /// What faults call it.
    name: String,
    text: &'a str,
    /// Whether it is an argument: everybody on the host can read those.
    is_argument: bool,
}

/// Returns the templates in its configs.
fn templates_of_configs(spec: &Spec) -> Vec<SpecTemplate<'_>> {
    let Spec::Yuno(spec) = spec else { return Vec::new() };
    let name = |one| config::name_in(spec, one);
    let all = spec.config_templates.templates.iter();
    all.map(|one| SpecTemplate { name: name(one), text: &one.text, is_argument: false }).collect()
}

/// Returns the templates of the spec itself.
fn templates(spec: &Spec) -> Vec<SpecTemplate<'_>> {
    match spec {
        Spec::Yuno(YunoSpec { program: ProgramSpec { render: true, env, args, .. }, .. }) => {
            of_process(env, [("argument", &args[..])])
        }
        Spec::Container(ContainerSpec { program: ProgramSpec { render: true, env, args, .. }, entry, .. }) => {
            of_process(env, [("entry", entry.as_deref().unwrap_or_default()), ("argument", args)])
        }
        Spec::Files(spec) => {
            let texts = spec.files.iter().filter_map(|(path, entry)| Some((path, entry.template.as_deref()?)));
            texts.map(|(path, text)| SpecTemplate { name: format!("files.{path}"), text, is_argument: false }).collect()
        }
        Spec::Yuno(_) | Spec::Container(_) | Spec::Packages(_) => Vec::new(),
    }
}

/// Returns the templates of an environment, and of arguments, each part of which has a name.
fn of_process<'a, const N: usize>(
    env: &'a BTreeMap<String, String>,
    words: [(&str, &'a [String]); N],
) -> Vec<SpecTemplate<'a>> {
    let env = env.iter().map(|(name, text)| SpecTemplate { name: format!("env.{name}"), text, is_argument: false });
    let words = words.into_iter().flat_map(|(part, words)| {
        let word = move |(n, text)| SpecTemplate { name: format!("{part} {n}"), text, is_argument: true };
        (1..).zip(words).map(move |(n, text): (usize, &'a String)| word((n, text.as_str())))
    });
    env.chain(words.collect::<Vec<_>>()).collect()
}

/// Whether a spec has templates.
#[must_use]
pub fn has_templates(spec: &Spec) -> bool {
    match spec {
        Spec::Yuno(spec) => spec.program.render || !spec.config_templates.templates.is_empty(),
        Spec::Container(spec) => spec.program.render,
        Spec::Files(spec) => spec.files.values().any(|entry| entry.template.is_some()),
        Spec::Packages(_) => false,
    }
}

/// Returns what a spec and its templates name.
///
/// # Errors
/// The first template that is none, or that names what it may not.
pub fn names_of(spec: &Spec) -> Result<TemplateNames, RenderFault> {
    let mut all = names_in(&templates(spec))?;
    all.add(names_in(&templates_of_configs(spec))?);
    if let Spec::Packages(spec) = spec {
        all.secrets.extend(spec.named_secrets().map(ToString::to_string));
    }
    Ok(all)
}

fn names_in(templates: &[SpecTemplate<'_>]) -> Result<TemplateNames, RenderFault> {
    let mut all = TemplateNames::default();
    for SpecTemplate { name, text, is_argument } in templates {
        let found = names(name, text)?;
        if let Some(secret) = found.secrets.iter().next().filter(|_| *is_argument) {
            let message = format!("it names the secret {secret}, and every user of the host can read arguments");
            return Err(RenderFault::new(name, message).with_hint("put it into `env`, or into a config"));
        }
        all.add(found);
    }
    Ok(all)
}

/// Fills in the values that the templates of a spec name on this host. If they render what those of the spec before would,
/// the values before stay: what is the same is the same revision. `unit` are the values of the host and the unit.
///
/// # Errors
/// The first template that cannot be rendered with them.
pub fn fill(spec: &mut Spec, before: Option<&Spec>, unit: &RenderValues) -> Result<(), RenderFault> {
    let (values, _) = filled((spec, &templates(spec)), before.and_then(Spec::values), unit)?;
    let of_configs = templates_of_configs(spec);
    let (config_values, bytes) = filled((spec, &of_configs), before.and_then(Spec::config_values), unit)?;
    // More than any configuration that a program reads.
    if bytes > RESULT_MAX_BYTES {
        let message =
            format!("the results of all templates have {bytes} bytes; at most {RESULT_MAX_BYTES} are allowed");
        return Err(RenderFault::new("configs", message));
    }
    spec.set_values(values);
    spec.set_config_values(config_values);
    Ok(())
}

/// Returns the values of some templates of a spec, and the size of what they give. The values are those of before, if they give
/// the same.
fn filled(
    templates: (&Spec, &[SpecTemplate<'_>]),
    before: Option<&BTreeMap<String, Value>>,
    unit: &RenderValues,
) -> Result<(BTreeMap<String, Value>, usize), RenderFault> {
    if templates.1.is_empty() {
        return Ok(Default::default());
    }
    let chosen = unit.chosen(&names_in(templates.1)?.values);
    let rendered = rendered_as(templates, RenderValues::of_chosen(&chosen));
    // A fault names what is near among all that there is, not among what the templates name.
    let rendered = rendered.map_err(|fault| rendered_as(templates, unit.clone()).err().unwrap_or(fault))?;
    let is_same = |known: &&BTreeMap<String, Value>| {
        **known == chosen
            || rendered_as(templates, RenderValues::of_chosen(known)).is_ok_and(|before| before == rendered)
    };
    let bytes = rendered.iter().map(String::len).sum();
    Ok((before.filter(is_same).cloned().unwrap_or(chosen), bytes))
}

/// Renders templates of a spec with values, and with what only a start knows left open.
fn rendered_as(
    (spec, templates): (&Spec, &[SpecTemplate<'_>]),
    values: RenderValues,
) -> Result<Vec<String>, RenderFault> {
    let values = values.with_endpoints(&open_wiring(spec));
    let render = |SpecTemplate { name, text, is_argument }: &SpecTemplate<'_>| {
        let text = render(name, text, &values, &|secret| Some(open_secret(secret)))?;
        if *is_argument && let Some(wrong) = wrong_placeholder(&text, spec) {
            let fault = RenderFault::new(name, format!("it says {}", wrong.cause));
            return Err(RenderFault { hint: wrong.hint, ..fault });
        }
        Ok(text)
    };
    templates.iter().map(render).collect()
}

/// Returns what is wrong with the placeholders of an argument.
fn wrong_placeholder(word: &str, spec: &Spec) -> Option<Diagnostic> {
    // A container's own program gets its arguments as they are.
    if spec.yuno().is_some_and(|yuno| yuno.container.is_some()) {
        return None;
    }
    wrong_placeholders(&[word.to_owned()], spec).into_iter().next().map(|(_, wrong)| wrong)
}

/// Returns the secrets that a process's templates name that are rendered when it is started: those of its environment, and
/// those in its configs that name endpoints.
///
/// # Errors
/// The first template that is none, or that names what it may not.
pub fn secrets_at_start(spec: &YunoSpec) -> Result<BTreeSet<String>, RenderFault> {
    if spec.common.secrets.is_empty() {
        return Ok(BTreeSet::new());
    }
    let mut all = names_in(&templates(&Spec::Yuno(spec.clone())))?;
    config::naming_endpoints(spec)?.into_iter().for_each(|(_, names)| all.add(names));
    Ok(all.secrets)
}

/// What stands for a secret that is not known.
fn open_secret(name: &str) -> String {
    format!("(secret {name})")
}

/// Endpoints of which no port is known.
fn open_wiring(spec: &Spec) -> EndpointWiring {
    let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let names: BTreeSet<_> =
        spec.provides().iter().map(|one| &one.name).chain(spec.needs().iter().map(|one| &one.name)).collect();
    let endpoint = |name: &&Name| Endpoint { name: (*name).clone(), address, port: 1, protocol: Protocol::default() };
    EndpointWiring { endpoints: names.iter().map(endpoint).collect(), connectors: Vec::new() }
}

/// What a process is started with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenderedProcess {
    /// Its environment.
    pub env: BTreeMap<String, String>,
    /// Its arguments, with placeholders.
    pub args: Vec<String>,
}

/// Renders environment and arguments of a process.
///
/// # Errors
/// The first template that cannot be rendered.
pub fn process(
    spec: &YunoSpec,
    wiring: &EndpointWiring,
    secrets: &dyn Fn(&str) -> Option<String>,
) -> Result<RenderedProcess, RenderFault> {
    if !spec.program.render {
        return Ok(RenderedProcess { env: spec.program.env.clone(), args: spec.program.args.clone() });
    }
    let values = RenderValues::of_chosen(&spec.program.values).with_endpoints(wiring);
    Ok(RenderedProcess {
        env: rendered_env(&spec.program.env, &values, secrets)?,
        args: rendered_words("argument", &spec.program.args, &values)?,
    })
}

/// Renders environment, entry and arguments of a container: a spec without templates.
///
/// # Errors
/// The first template that cannot be rendered.
pub fn container(
    spec: &ContainerSpec,
    wiring: &EndpointWiring,
    secrets: &dyn Fn(&str) -> Option<String>,
) -> Result<ContainerSpec, RenderFault> {
    if !spec.program.render {
        return Ok(spec.clone());
    }
    let values = RenderValues::of_chosen(&spec.program.values).with_endpoints(wiring);
    let entry = spec.entry.as_ref().map(|entry| rendered_words("entry", entry, &values));
    let program = ProgramSpec {
        render: false,
        env: rendered_env(&spec.program.env, &values, secrets)?,
        args: rendered_words("argument", &spec.program.args, &values)?,
        ..spec.program.clone()
    };
    Ok(ContainerSpec { entry: entry.transpose()?, program, ..spec.clone() })
}

fn rendered_env(
    env: &BTreeMap<String, String>,
    values: &RenderValues,
    secrets: &dyn Fn(&str) -> Option<String>,
) -> Result<BTreeMap<String, String>, RenderFault> {
    env.iter()
        .map(|(name, text)| {
            let place = format!("env.{name}");
            let value = render(&place, text, values, secrets)?;
            Ok((name.clone(), without_zero(&place, value)?))
        })
        .collect()
}

fn rendered_words(part: &str, words: &[String], values: &RenderValues) -> Result<Vec<String>, RenderFault> {
    (1..)
        .zip(words)
        .map(|(n, text): (usize, _)| {
            let place = format!("{part} {n}");
            without_zero(&place, render(&place, text, values, &|_| None)?)
        })
        .collect()
}

/// No process can be given a zero byte.
fn without_zero(place: &str, value: String) -> Result<String, RenderFault> {
    match value.contains('\0') {
        true => Err(RenderFault::new(place, "its result has a zero byte".to_owned())),
        false => Ok(value),
    }
}

/// Renders the templates of a unit as it runs, by name, with secrets masked, and values of the environment that are no templates:
/// these are shown nowhere.
///
/// # Errors
/// The first template that cannot be rendered.
pub fn shown(spec: &Spec, wiring: &EndpointWiring) -> Result<BTreeMap<String, String>, RenderFault> {
    let with = |values: Option<&BTreeMap<String, Value>>| {
        RenderValues::of_chosen(values.unwrap_or(&BTreeMap::new())).with_endpoints(wiring)
    };
    let (values, config_values) = (with(spec.values()), with(spec.config_values()));
    let own = templates(spec).into_iter().map(|template| (template, &values));
    let of_configs = templates_of_configs(spec).into_iter().map(|template| (template, &config_values));
    own.chain(of_configs)
        .map(|(SpecTemplate { name, text, .. }, values)| {
            let is_plain = !["{{", "{%", "{#"].iter().any(|tag| text.contains(tag));
            let text = match is_plain && name.starts_with("env.") {
                true => MASK.to_owned(),
                false => render(&name, text, values, &|_| Some(MASK.to_owned()))?,
            };
            Ok((name, text))
        })
        .collect()
}

/// Returns everything that is wrong with the templates of a spec, as far as that is known without a host.
#[must_use]
pub fn faults(spec: &Spec) -> Vec<Diagnostic> {
    names_of(spec).err().map(|fault| Diagnostic::of(&fault)).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use muster_topics::heartbeat::Facts;
    use serde_json::json;

    use super::*;

    fn spec(fields: Value) -> Spec {
        let artifact = json!({"sha256": "0".repeat(64), "size_bytes": 5, "role": "hello", "version": "1"});
        let mut spec = json!({"kind": "yuno", "render": true, "artifact": artifact});
        spec.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        serde_json::from_value(spec).unwrap()
    }

    fn host(vars: Value) -> RenderValues {
        let facts = Facts { cpus: 4, ..Facts::default() };
        RenderValues::of_host(("4f", "shop-7"), &facts, [])
            .with_vars(vars.as_object().unwrap().clone())
            .with_unit(&"shop/till".parse().unwrap())
    }

    #[test]
    fn values_are_filled_in_and_stay_while_the_result_is_the_same() {
        let fields =
            json!({"args": ["{{ vars.a // 10 }}"], "env": {"CPUS": "{{ fact.cpus }}"}, "values": {"vars.x": 1}});
        let mut first = spec(fields.clone());
        fill(&mut first, None, &host(json!({"a": 11, "b": 1}))).unwrap();
        assert_eq!(serde_json::to_value(first.values()).unwrap(), json!({"vars.a": 11, "fact.cpus": 4}));
        let mut same = spec(fields.clone());
        fill(&mut same, Some(&first), &host(json!({"a": 12}))).unwrap();
        assert_eq!((same.revision().unwrap(), same.values()), (first.revision().unwrap(), first.values()));
        let mut other = spec(fields);
        fill(&mut other, Some(&first), &host(json!({"a": 20}))).unwrap();
        assert_ne!(other.revision().unwrap(), first.revision().unwrap());
        let Spec::Yuno(other) = other else { panic!() };
        let rendered = process(&other, &EndpointWiring::default(), &|_| None).unwrap();
        assert_eq!((rendered.args[0].as_str(), rendered.env["CPUS"].as_str()), ("2", "4"));
    }

    #[test]
    fn what_no_host_can_render_is_refused_before() {
        for (fields, words) in [
            (json!({"args": ["{{ secret('db') }}"]}), "argument 1: it names the secret db"),
            (json!({"env": {"A": "{{ hots.id }}"}}), "env.A, line 1: unknown name hots"),
            (json!({"args": ["-c", "{{ fact.cpu }}"]}), "argument 2, line 1: unknown name fact.cpu"),
        ] {
            let found = Diagnostic::all(crate::edit::faults(&spec(fields))).unwrap_or_default().cause;
            assert!(found.starts_with(words), "{found}");
        }
        assert_eq!(
            crate::edit::faults(&spec(json!({"args": ["{{realm}} {config}"], "env": {"A": "{{ secret('db') }}"}}))),
            []
        );
        let near = crate::edit::faults(&spec(json!({"env": {"A": "{{ hots.id }}"}})));
        assert_eq!(near[0].hint.as_deref(), Some("did you mean `host`?"));
        let plain = json!({"render": false, "args": ["{{ hots }}", "{{config}}"], "env": {"A": "{{ x"}});
        assert_eq!(crate::edit::faults(&spec(plain)), []);
    }

    #[test]
    fn what_this_host_cannot_render_is_refused() {
        for (fields, words) in [
            (json!({"env": {"A": "{{ vars.colour }}"}}), "env.A, line 1: vars.colour has no value here"),
            (json!({"env": {"A": "{{ vars.nam }}"}}), "env.A, line 1: vars.nam has no value here"),
            (
                json!({"args": ["{{ vars.a }}{fact:cpus}"]}),
                "argument 1: it says {fact:cpus}, which is an unknown placeholder",
            ),
            (json!({"args": ["{{ '{port:web}' }}"]}), "argument 1: it says {port:web}, and provides has no web"),
            (json!({"args": ["{{ endpoint('web') }}"]}), "argument 1, line 1: the unit has no endpoint web"),
        ] {
            let fault = fill(&mut spec(fields), None, &host(json!({"a": 1, "name": "x"}))).unwrap_err().to_string();
            assert!(fault.starts_with(words), "{fault}");
        }
        let near = json!({"env": {"A": "{{ vars.nam }}"}});
        let hint = fill(&mut spec(near), None, &host(json!({"name": "x"}))).unwrap_err().hint.unwrap();
        assert!(hint.starts_with("did you mean `name`?; or set it: `muster var set nam"), "{hint}");
        let provides = json!([{"name": "web"}]);
        let mut good = spec(json!({"provides": provides, "args": ["{port:web}{{ endpoint('web').port }}{{ realm }}"]}));
        fill(&mut good, None, &host(json!({}))).unwrap();
    }

    #[test]
    fn container_is_rendered_as_a_process_is() {
        let container = |fields: Value| -> Spec {
            let mut spec = json!({"kind": "container", "render": true, "image": {"name": "alpine:3"}});
            spec.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
            serde_json::from_value(spec).unwrap()
        };
        let fields = json!({
            "entry": ["run-{{ vars.a }}"], "args": ["{port:web}", "{{ instance.name }}"], "provides": [{"name": "web"}],
            "env": {"A": "{{ vars.a }}", "DSN": "till:{{ secret('db') }}", "PLAIN": "perhaps a secret"},
        });
        let mut spec = container(fields);
        fill(&mut spec, None, &host(json!({"a": 7, "b": 1}))).unwrap();
        assert_eq!(serde_json::to_value(spec.values()).unwrap(), json!({"vars.a": 7, "instance.name": "till"}));
        let mut other = spec.clone();
        fill(&mut other, Some(&spec), &host(json!({"a": 8}))).unwrap();
        assert_ne!(other.revision().unwrap(), spec.revision().unwrap());
        assert_ne!(other.frame().unwrap(), spec.frame().unwrap());
        let Spec::Container(own) = &spec else { panic!() };
        let secret = |name: &str| (name == "db").then(|| "hunter2".to_owned());
        let rendered = super::container(own, &EndpointWiring::default(), &secret).unwrap();
        assert_eq!(
            (rendered.entry, rendered.program.args),
            (Some(vec!["run-7".into()]), vec!["{port:web}".into(), "till".into()])
        );
        assert_eq!((rendered.program.env["A"].as_str(), rendered.program.env["DSN"].as_str()), ("7", "till:hunter2"));
        let shown = serde_json::to_value(shown(&spec, &EndpointWiring::default()).unwrap()).unwrap();
        let wanted = json!({
            "argument 1": "{port:web}", "argument 2": "till", "entry 1": "run-7", "env.A": "7", "env.DSN": "till:***",
            "env.PLAIN": "***",
        });
        assert_eq!(shown, wanted);
        for (fields, words) in [
            (json!({"entry": ["{{ secret('db') }}"]}), "entry 1: it names the secret db"),
            (json!({"args": ["{{ hots.id }}"]}), "argument 1, line 1: unknown name hots"),
            (json!({"image": {"existing": "web"}}), "render: web is adopted with its present settings"),
        ] {
            let found = Diagnostic::all(crate::edit::faults(&container(fields))).unwrap_or_default().cause;
            assert!(found.contains(words), "{found}");
        }
        for (args, words) in [
            (json!(["{nonsense}"]), "argument 1: it says {nonsense}, which is an unknown placeholder"),
            (json!(["{{ '{config}' }}"]), "argument 1: it says {config}, which is an unknown placeholder"),
        ] {
            let fault = fill(&mut container(json!({"args": args})), None, &host(json!({}))).unwrap_err().to_string();
            assert!(fault.starts_with(words), "{fault}");
        }
    }
}
