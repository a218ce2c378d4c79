//! Tests of specs that are applied as they are shown, with masked secrets.

use super::*;

fn with(value: &str) -> Box<Spec> {
    yuno(|spec| drop(spec.program.env.insert("TOKEN".to_owned(), value.to_owned())))
}

#[test]
fn mask_keeps_the_present_value() {
    let before = Desired { spec: (*with("hunter2")).into(), ..desired(Run::Running, |_| ()) };
    let observed = seen(Phase::Running);
    let current = Some(CurrentUnit { desired: &before, hold: None, observed: &observed });
    assert_eq!(edit(&unit(), current, &applied(with(MASK), None)), Ok(UnitEdit::Keep));
    let also = yuno(|spec| {
        spec.program.env.insert("TOKEN".to_owned(), MASK.to_owned());
        spec.program.env.insert("PORT".to_owned(), "1".to_owned());
    });
    let Ok(UnitEdit::Set { spec, .. }) = edit(&unit(), current, &applied(also, None)) else {
        panic!("should be a change")
    };
    let Spec::Yuno(spec) = &*spec else { panic!("a yuno") };
    assert_eq!((&spec.program.env["TOKEN"][..], &spec.program.env["PORT"][..]), ("hunter2", "1"));
}

#[test]
fn mask_without_present_value_is_refused() {
    assert_eq!(word(&edit(&unit(), None, &applied(with(MASK), None))), "Invalid");
    let (before, observed) = (desired(Run::Running, |_| ()), seen(Phase::Running));
    let current = Some(CurrentUnit { desired: &before, hold: None, observed: &observed });
    assert_eq!(word(&edit(&unit(), current, &applied(with(MASK), None))), "Invalid");
}
