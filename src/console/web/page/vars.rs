//! The page of variables.

use axum::{extract::State, http::StatusCode, response::Response};
use muster_api::{NewVar, Var, VarLayer, VarName};
use muster_topics::{canonical, name::Name};
use serde::Deserialize;
use serde_json::Value;

use crate::{
    error::Error,
    state::Console,
    web::{
        answer,
        extract::PageParams,
        guard::FormFields,
        session::WebSession,
        view::vars::{LayerKind, PAGE_VARS, ShownVars, VarForm, VarsView},
    },
};

/// The longest search text: longer than any name.
const TEXT_MAX_CHARS: usize = 255;

/// The filter of variables.
#[derive(Debug, Deserialize)]
pub(in crate::web) struct VarsPageQuery {
    #[serde(default)]
    q: String,
    page: Option<String>,
}

impl VarsPageQuery {
    fn shown(&self) -> ShownVars {
        ShownVars {
            text: self.q.trim().chars().take(TEXT_MAX_CHARS).collect(),
            page: self.page.as_deref().and_then(|page| page.parse().ok()).unwrap_or(1).max(1),
        }
    }
}

/// All variables.
pub(in crate::web) async fn show(
    State(console): State<Console>,
    session: WebSession,
    PageParams(asked): PageParams<VarsPageQuery>,
) -> Response {
    let view = view(&console, asked.shown()).await;
    answer::or_problem(&session, view.map(|view| answer::page(&session, &view, None)))
}

async fn view(console: &Console, shown: ShownVars) -> Result<VarsView, Error> {
    let mut vars = console.vars().await?;
    vars.retain(|var| picks(&shown.text, var));
    let (found, first) = (vars.len(), (shown.page - 1).saturating_mul(PAGE_VARS));
    let vars = vars.into_iter().skip(first).take(PAGE_VARS).collect();
    Ok(VarsView { shown, vars, found, form: VarForm::default(), problem: None })
}

fn picks(text: &str, var: &Var) -> bool {
    let has = |of: &str| of.to_lowercase().contains(&text.to_lowercase());
    has(var.name.as_str()) || has(&var.layer.to_string()) || var.hostname.as_deref().is_some_and(has)
}

/// Sets a variable.
pub(in crate::web) async fn set(State(console): State<Console>, session: WebSession, fields: FormFields) -> Response {
    let form = VarForm {
        name: fields.one("name").to_owned(),
        value: fields.raw("value").replace("\r\n", "\n"),
        is_json: fields.one("json") == "yes",
        kind: LayerKind::ALL.into_iter().find(|kind| kind.word() == fields.one("kind")).unwrap_or_default(),
        of: fields.one("of").to_owned(),
    };
    let answer = async {
        let new = new(&form)?;
        console.set_var(&session.operator, new).await?;
        Ok::<_, Error>(answer::see("/vars"))
    };
    match answer.await {
        Err(error) if error.status < 500 => {
            let status = StatusCode::from_u16(error.status).unwrap_or(StatusCode::BAD_REQUEST);
            let shown = ShownVars { page: 1, ..ShownVars::default() };
            let view = view(&console, shown).await.map(|view| VarsView { form, problem: Some(error.problem), ..view });
            answer::or_problem(&session, view.map(|view| answer::html(status, session.frame().page(&view))))
        }
        answer => answer::or_problem(&session, answer),
    }
}

/// Returns the variable of a form.
fn new(form: &VarForm) -> Result<NewVar, Error> {
    let wrong = |message: String| Error::invalid("bad_var", message);
    let name: Name = form.name.parse().map_err(|error| wrong(format!("the name: {error}")))?;
    let layer = match form.kind {
        LayerKind::Fleet if form.of.is_empty() => Ok(VarLayer::Fleet),
        LayerKind::Fleet => Err(format!("a variable for all hosts has no {:?}; choose realm, label or host", form.of)),
        kind => format!("{}:{}", kind.word(), form.of).parse(),
    };
    let layer = layer.map_err(wrong)?;
    let value = match form.is_json {
        false => Value::String(form.value.clone()),
        true => canonical::parse_value(form.value.as_bytes()).map_err(|error| wrong(format!("the value: {error}")))?,
    };
    Ok(NewVar { layer, name, value })
}

/// Removes a variable.
pub(in crate::web) async fn remove(
    State(console): State<Console>,
    session: WebSession,
    fields: FormFields,
) -> Response {
    let answer = async {
        let wrong = |error: String| Error::invalid("bad_var", error).hint("load the page again");
        let layer = fields.one("layer").parse().map_err(wrong)?;
        let name = fields.one("name").parse::<Name>().map_err(|error| wrong(error.to_string()))?;
        console.remove_var(&session.operator, VarName { layer, name }).await?;
        Ok(answer::see("/vars"))
    };
    answer::or_problem(&session, answer.await)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn form_is_read_as_a_variable() {
        let form = |kind, of: &str, value: &str, is_json| VarForm {
            name: "limit".to_owned(),
            value: value.to_owned(),
            is_json,
            kind,
            of: of.to_owned(),
        };
        let read = |form: &VarForm| new(form).map(|new| (new.layer.to_string(), new.value)).ok();
        for (given, wanted) in [
            (form(LayerKind::Fleet, "", "4", false), Some(("fleet", json!("4")))),
            (form(LayerKind::Realm, "shop", "4", true), Some(("realm:shop", json!(4)))),
            (form(LayerKind::Label, "site=north", "x\ny", false), Some(("label:site=north", json!("x\ny")))),
            (form(LayerKind::Host, "anna", "", false), Some(("host:anna", json!("")))),
            (form(LayerKind::Fleet, "anna", "4", false), None),
            (form(LayerKind::Host, "", "4", false), None),
            (form(LayerKind::Label, "site", "4", false), None),
            (form(LayerKind::Fleet, "", "{", true), None),
            (form(LayerKind::Fleet, "", "18446744073709551616", true), None),
            (form(LayerKind::Fleet, "", &["[".repeat(40), "]".repeat(40)].concat(), true), None),
        ] {
            assert_eq!(read(&given), wanted.map(|(layer, value)| (layer.to_owned(), value)), "{given:?}");
        }
        assert!(new(&VarForm { name: "Two Words".to_owned(), ..VarForm::default() }).is_err());
    }
}
