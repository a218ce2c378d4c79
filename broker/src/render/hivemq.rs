//! HiveMQ: roles for its file RBAC extension.

use std::fmt::Write as _;

use muster_topics::role::{Action, Role};

use super::context::{RenderContext, RenderedFile};

const VERSION: &str = "HiveMQ's file RBAC extension 4.6";
const TESTED: &str = "UNTESTED: written from the extension's documentation; no test of muster's runs it.";

pub(super) fn files(maker: &RenderContext<'_>) -> Vec<RenderedFile> {
    vec![RenderedFile { name: "credentials.xml", text: credentials(maker) }]
}

fn credentials(maker: &RenderContext<'_>) -> String {
    let head = maker.head(
        "   ",
        VERSION,
        TESTED,
        &[
            "Here are the roles. Add the users yourself: passwords are not written to a generated file. Each has the common \
             name of its certificate as user name, one of the roles, and a password hash that the extension's own tool makes.",
            "Not expressed: that the user name is the certificate's common name. The extension knows names and passwords \
             alone, and muster's agents and consoles show certificates and send neither; so something before it, such \
             as HiveMQ's enterprise security extension, has to make the user name of the common name. In that \
             extension, enter the same topics.",
            "A console must be named (--console) to publish that it is there.",
        ],
    );
    let mut roles = String::new();
    for (role, id, own) in
        [(Role::Host, "host", "${{username}}"), (Role::Operator, "operator", ""), (Role::Observer, "observer", "")]
    {
        add_role(maker, role, id, own, &mut roles);
    }
    for name in &maker.fleet.consoles {
        add_role(maker, Role::Console, &format!("console-{name}"), name.as_str(), &mut roles);
    }
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\" standalone=\"yes\"?>
<!--
{head}-->
<file-rbac>
    <users>
    </users>
    <roles>
{roles}    </roles>
</file-rbac>
",
        // A comment in XML must not contain two hyphens.
        head = head.replace("--", "- -"),
    )
}

fn add_role(maker: &RenderContext<'_>, role: Role, id: &str, own: &str, text: &mut String) {
    // Adding lines to a string cannot fail.
    let _ = writeln!(text, "        <role>\n            <id>{id}</id>\n            <permissions>");
    for (action, word) in [(Action::Publish, "PUBLISH"), (Action::Subscribe, "SUBSCRIBE")] {
        for filter in maker.filters_and_system(role, action, own) {
            let _ = writeln!(
                text,
                "                <permission>\n                    <topic>{filter}</topic>\n                    \
                 <activity>{word}</activity>\n                    <shared-subscription>NOT_SHARED</shared-subscription>\n                \
                 </permission>"
            );
        }
    }
    text.push_str("            </permissions>\n        </role>\n");
}
