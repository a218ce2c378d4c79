//! Templates in configs: `{"$template": "…"}` in place of a text.
//!
//! The console, which has the content, finds those that count ([`counting`]) and puts them into the unit's spec, where the host
//! finds what they name ([`super::unit::fill`]). So what is rendered is a function of the spec, as with other templates. The
//! host then puts the results into the content that it has fetched ([`rendered`]); what names an endpoint has a value only
//! when the unit is started ([`at_start`]).

use std::collections::BTreeSet;

use muster_topics::{
    diagnostic::Diagnostic,
    name::{ConfigId, Name},
    unit::{CONFIG_TEMPLATES_MAX, ConfigRef, ConfigTemplate, YunoSpec},
};
use serde_json::{Map, Value};

use super::{RenderFault, RenderValues, TemplateNames, names, render};
use crate::{
    config::{self, SECRET, TEMPLATE},
    port_lease::EndpointWiring,
};

/// Returns what faults call a template.
#[must_use]
pub fn template_name(config: &ConfigId, version: Option<&str>, at: &str) -> String {
    let version = version.map(|version| format!("@{version}")).unwrap_or_default();
    let at = if at.is_empty() { "the whole document" } else { at };
    format!("config {config}{version} {at}")
}

/// Returns what faults call a template of a unit.
pub(super) fn name_in(spec: &YunoSpec, template: &ConfigTemplate) -> String {
    let config = spec.configs.iter().find(|config| config.id == template.config);
    template_name(&template.config, config.map(|config| config.version.as_str()), &template.at)
}

/// Returns all that is wrong with the templates of a config, as far as that is known without a host, each with its place.
#[must_use]
pub fn check(config: &ConfigId, version: &str, document: &Value) -> Vec<Diagnostic> {
    let mut mistakes: Vec<Diagnostic> = config::check_templates(document).into_iter().map(Diagnostic::from).collect();
    let templates = config::templates(document);
    if templates.len() > CONFIG_TEMPLATES_MAX {
        let count = templates.len();
        mistakes.push(format!("it has {count} templates; at most {CONFIG_TEMPLATES_MAX} are allowed").into());
        return mistakes;
    }
    let faults = templates
        .iter()
        .filter_map(|(at, text)| names(&template_name(config, Some(version), at), text).err())
        .map(|fault| Diagnostic::of(&fault));
    mistakes.extend(faults);
    mistakes
}

/// Returns the secrets that the templates of a document name. What is no template names none.
#[must_use]
pub fn secrets(document: &Value) -> BTreeSet<Name> {
    let names = config::templates(document).into_iter().filter_map(|(at, text)| names(&at, &text).ok());
    names.flat_map(|names| names.secrets).filter_map(|name| name.parse().ok()).collect()
}

/// Returns the templates of a unit's configs that count: those that are in the merged config.
#[must_use]
pub fn counting(configs: &[ConfigRef], documents: &[Value]) -> Vec<ConfigTemplate> {
    let mut all = Vec::new();
    let numbered = configs.iter().zip(documents).map(|(config, document)| {
        let mut number = |at: &str, text: &str| {
            all.push(ConfigTemplate { config: config.id.clone(), at: at.to_owned(), text: text.to_owned() });
            Ok::<_, std::convert::Infallible>(marked((all.len() - 1).to_string()))
        };
        config::map_templates(document, &mut number).unwrap_or_else(|never| match never {})
    });
    let merged = config::merge(numbered.collect::<Vec<_>>());
    let left = config::templates(&merged);
    left.iter().filter_map(|(_, number)| all.get(number.parse::<usize>().ok()?).cloned()).collect()
}

fn marked(text: String) -> Value {
    Value::Object(Map::from_iter([(TEMPLATE.to_owned(), text.into())]))
}

/// Returns a config of a unit with the result in place of each template. What names a secret is a secret. What names an
/// endpoint stays a template, and one that a later config replaces becomes null. A spec without templates is of a time when
/// there were none: whatever looks like one is data then.
///
/// # Errors
/// The first template that cannot be rendered.
pub fn rendered(
    spec: &YunoSpec,
    config: &ConfigRef,
    document: &Value,
    secrets: &dyn Fn(&str) -> Option<String>,
) -> Result<Value, RenderFault> {
    let known = &spec.config_templates;
    if known.templates.is_empty() {
        return Ok(document.clone());
    }
    let values = RenderValues::of_chosen(&known.values);
    config::map_templates(document, &mut |at, text| {
        let counts = known.templates.iter().any(|one| one.config == config.id && one.at == at && one.text == text);
        if !counts {
            return Ok(Value::Null);
        }
        let name = template_name(&config.id, Some(config.version.as_str()), at);
        let names = names(&name, text)?;
        if names.has_endpoint {
            return Ok(marked(text.to_owned()));
        }
        let text = render(&name, text, &values, secrets)?;
        Ok(match names.secrets.is_empty() {
            true => text.into(),
            false => Value::Object(Map::from_iter([(SECRET.to_owned(), text.into())])),
        })
    })
}

/// Returns a document without the templates that [`rendered`] has left, for a file that is written before there are endpoints.
#[must_use]
pub fn without_left(spec: &YunoSpec, document: Value) -> Value {
    if spec.config_templates.templates.is_empty() {
        return document;
    }
    config::map_templates(&document, &mut |_, _| Ok::<_, std::convert::Infallible>(Value::Null))
        .unwrap_or_else(|never| match never {})
}

/// Returns the results of the templates that name endpoints, each with its place in the merged config.
///
/// # Errors
/// The first that cannot be rendered.
pub fn at_start(
    spec: &YunoSpec,
    wiring: &EndpointWiring,
    secrets: &dyn Fn(&str) -> Option<String>,
) -> Result<Vec<(String, String)>, RenderFault> {
    let values = RenderValues::of_chosen(&spec.config_templates.values).with_endpoints(wiring);
    naming_endpoints(spec)?
        .into_iter()
        .map(|(template, _)| {
            let text = render(&name_in(spec, template), &template.text, &values, secrets)?;
            Ok((template.at.clone(), text))
        })
        .collect()
}

/// Returns the templates that name endpoints.
pub(super) fn naming_endpoints(spec: &YunoSpec) -> Result<Vec<(&ConfigTemplate, TemplateNames)>, RenderFault> {
    let mut found = Vec::new();
    for template in &spec.config_templates.templates {
        let names = names(&name_in(spec, template), &template.text)?;
        if names.has_endpoint {
            found.push((template, names));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use muster_topics::{
        heartbeat::Facts,
        name::Digest,
        unit::{Run, Spec},
    };
    use serde_json::json;

    use super::{
        super::unit::{fill, secrets_at_start, shown},
        *,
    };

    fn config(id: &str) -> ConfigRef {
        ConfigRef { id: id.parse().unwrap(), version: "1".parse().unwrap(), sha256: Digest::of(id.as_bytes()) }
    }

    /// A unit with these configs, as the console makes it.
    fn unit(documents: &[Value]) -> Spec {
        let configs: Vec<ConfigRef> =
            ["base", "shop", "host"].iter().zip(documents).map(|(id, _)| config(id)).collect();
        let artifact = json!({"sha256": "0".repeat(64), "size_bytes": 5, "role": "hello", "version": "1"});
        let mut spec: Spec = serde_json::from_value(json!({
            "kind": "yuno", "artifact": artifact, "configs": configs, "provides": [{"name": "web"}],
            "secrets": [{"name": "db", "version": 1}, {"name": "key", "version": 1}],
        }))
        .unwrap();
        spec.set_config_templates(counting(&configs, documents));
        spec
    }

    fn host(vars: Value) -> RenderValues {
        RenderValues::of_host(("4f", "shop-7"), &Facts { cpus: 4, ..Facts::default() }, [])
            .with_vars(vars.as_object().unwrap().clone())
            .with_unit(&"shop/till".parse().unwrap())
    }

    fn t(text: &str) -> Value {
        json!({ TEMPLATE: text })
    }

    fn places(documents: &[Value]) -> Vec<String> {
        unit(documents).config_templates().iter().map(|one| format!("{} {} {}", one.config, one.at, one.text)).collect()
    }

    #[test]
    fn templates_that_a_later_config_replaces_do_not_count() {
        let base = json!({"a": t("1"), "b": {"c": t("2"), "d": [t("3"), {"e": t("4")}]}, "x~/": t("5")});
        assert_eq!(
            places(std::slice::from_ref(&base)),
            ["base /a 1", "base /b/c 2", "base /b/d/0 3", "base /b/d/1/e 4", "base /x~0~1 5"]
        );
        let shop = json!({"a": "plain", "b": {"c": t("6"), "d": [t("7")]}, "x~/": null});
        assert_eq!(places(&[base.clone(), shop.clone()]), ["shop /b/c 6", "shop /b/d/0 7"]);
        assert_eq!(places(&[base.clone(), shop, base.clone()]), places(std::slice::from_ref(&base)).map_to("host"));
        // Over an object, and under one.
        assert_eq!(places(&[base, json!({"b": t("8")})]), ["base /a 1", "shop /b 8", "base /x~0~1 5"]);
        assert_eq!(places(&[json!({"a": t("1")}), json!({"a": {"b": 1}})]), [""; 0]);
        assert_eq!(
            places(&[json!({"a": {"$secret": t("1")}, "b": {TEMPLATE: 1}, "c": {TEMPLATE: "x", "d": 1}})]),
            [""; 0]
        );
    }

    trait MapTo {
        fn map_to(self, config: &str) -> Vec<String>;
    }

    impl MapTo for Vec<String> {
        fn map_to(self, config: &str) -> Vec<String> {
            self.into_iter().map(|text| text.replacen("base", config, 1)).collect()
        }
    }

    #[test]
    fn layered_config_is_rendered() {
        let documents = [
            json!({"url": t("//{{ host.hostname }}/{{ vars.colour }}"), "n": t("{{ vars.nobody }}"), "k": 1}),
            json!({"n": "none", "dsn": t("u:{{ secret('db') }}@h"), "web": t("{{ endpoint('web') }} {{ secret('key') }}")}),
        ];
        let mut spec = unit(&documents);
        fill(&mut spec, None, &host(json!({"colour": "red", "other": 1}))).unwrap();
        assert_eq!(
            serde_json::to_value(spec.config_values()).unwrap(),
            json!({"host.hostname": "shop-7", "vars.colour": "red"})
        );
        let Spec::Yuno(yuno) = &spec else { panic!() };
        let secret = |name: &str| Some(format!("<{name}>"));
        let of = |id: &str, document| rendered(yuno, &config(id), document, &secret).unwrap();
        assert_eq!(of("base", &documents[0]), json!({"url": "//shop-7/red", "n": null, "k": 1}));
        let shop = of("shop", &documents[1]);
        let web = json!({TEMPLATE: "{{ endpoint('web') }} {{ secret('key') }}"});
        assert_eq!(shop, json!({"n": "none", "dsn": {SECRET: "u:<db>@h"}, "web": web}));
        assert_eq!(without_left(yuno, shop)["web"], Value::Null);
        assert_eq!(secrets_at_start(yuno).unwrap(), ["key".to_owned()].into());
        let wiring: EndpointWiring = serde_json::from_value(json!({
            "endpoints": [{"name": "web", "address": "127.0.0.1", "port": 81, "protocol": "tcp"}], "connectors": [],
        }))
        .unwrap();
        let at_start = at_start(yuno, &wiring, &secret).unwrap();
        assert_eq!(at_start, [("/web".to_owned(), "127.0.0.1:81 <key>".to_owned())]);
        let shown = serde_json::to_value(shown(&spec, &wiring).unwrap()).unwrap();
        assert_eq!(
            shown,
            json!({
                "config base@1 /url": "//shop-7/red", "config shop@1 /dsn": "u:***@h",
                "config shop@1 /web": "127.0.0.1:81 ***",
            })
        );
        // What its host finds is no part of a document.
        let fields = crate::document::all_fields(&spec, Run::Running);
        assert_eq!((fields.get("config_templates"), &fields["config_values"]["vars.colour"]), (None, &json!("red")));
        let written = crate::document::fields_to_write(&"shop/till".parse().unwrap(), &spec, Run::Running);
        assert!(!written.contains_key("config_values"), "{written:?}");
        // Of a spec without templates a marker is data.
        let mut before = yuno.clone();
        before.config_templates = Default::default();
        assert_eq!(rendered(&before, &config("base"), &documents[0], &secret).unwrap(), documents[0]);
        assert_eq!(without_left(&before, documents[0].clone()), documents[0]);
    }

    #[test]
    fn values_stay_while_the_result_is_the_same() {
        let documents = [json!({"a": t("{{ vars.n // 10 }}")})];
        let filled = |n: u32, before: Option<&Spec>| {
            let mut spec = unit(&documents);
            fill(&mut spec, before, &host(json!({"n": n}))).unwrap();
            spec
        };
        let first = filled(11, None);
        let (same, other) = (filled(19, Some(&first)), filled(20, Some(&first)));
        assert_eq!((&same, same.revision().unwrap()), (&first, first.revision().unwrap()));
        assert_ne!(other.revision().unwrap(), first.revision().unwrap());
        // The arguments' values are found for themselves.
        let of = |n: u32, m: u32, before: Option<&Spec>| {
            let mut spec = unit(&documents);
            let Spec::Yuno(yuno) = &mut spec else { panic!() };
            (yuno.program.render, yuno.program.args) = (true, vec!["{{ vars.m }}".to_owned()]);
            fill(&mut spec, before, &host(json!({"n": n, "m": m}))).unwrap();
            spec
        };
        let before = of(11, 1, None);
        let after = of(12, 2, Some(&before));
        assert_eq!(after.config_values(), before.config_values());
        assert_ne!(after.values(), before.values());
    }

    #[test]
    fn fault_has_config_place_and_line() {
        let part = "{% set a = 'x' %}{{ a * 20000 }}";
        let long = part.repeat(60);
        for (document, words, hint) in [
            (
                json!({"a": {"b": t("x\n{{ vars.color }}")}}),
                "config base@1 /a/b, line 2: vars.color has no value here",
                Some("did you mean `colour`?"),
            ),
            (
                json!({"a": t("{{ endpoint('wep') }}")}),
                "config base@1 /a, line 1: the unit has no endpoint wep",
                Some("did you mean `web`?"),
            ),
            (json!({"a": t(&long)}), "config base@1 /a: its result has more than", None),
        ] {
            let fault = fill(&mut unit(&[document]), None, &host(json!({"colour": 1}))).unwrap_err();
            assert!(fault.to_string().starts_with(words), "{fault}");
            assert_eq!(fault.hint.is_some(), hint.is_some(), "{fault}");
            assert!(fault.hint.unwrap_or_default().starts_with(hint.unwrap_or_default()));
        }
        let all: serde_json::Map<String, Value> = (0..60).map(|n| (format!("k{n}"), t(part))).collect();
        let fault = fill(&mut unit(&[all.into()]), None, &host(json!({}))).unwrap_err().to_string();
        assert!(fault.contains("the results of all templates have 1"), "{fault}");
    }

    #[test]
    fn mistakes_of_a_document_are_all_told() {
        let id = "base".parse().unwrap();
        let document = json!({
            "a": t("{{ hots.id }}"), "b": [t("{{ x")], "c": {TEMPLATE: 1}, "d": {TEMPLATE: "x", "e": 1}, "f": t("{{ realm }}"),
            "g": {"$secret": "{{ x"},
        });
        let found = check(&id, "2", &document);
        let starts = [
            "/c: a template must be a text",
            "/d: \"$template\"",
            "config base@2 /a, line 1: unknown name hots",
            "config base@2 /b/0, line 1: ",
        ];
        assert_eq!(found.len(), starts.len(), "{found:#?}");
        assert_eq!(found[2].hint.as_deref(), Some("did you mean `host`?"));
        for (found, start) in found.iter().zip(starts) {
            assert!(found.cause.starts_with(start), "{found}");
        }
        assert_eq!(secrets(&json!({"a": t("{{ secret('b') }}"), "c": [t("{{ secret('d') }}")]})).len(), 2);
        let many: Vec<Value> = (0..=CONFIG_TEMPLATES_MAX).map(|_| t("x")).collect();
        assert!(check(&id, "2", &many.into())[0].cause.contains("at most 128"));
    }
}
