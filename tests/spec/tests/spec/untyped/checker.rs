//! Tries each form of each API function with untyped arguments and collects the forms that the
//! server cannot resolve.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use idem_testkit::Session;
use tokio_postgres::types::Type;

use super::catalog::{Overload, functions};

/// One form of the functions that share a name: the arguments that are passed, by position or by
/// name.
struct Form<'a> {
    function: &'a str,
    is_procedure: bool,
    given: Vec<Given<'a>>,
}

/// An argument that a form passes, with its types in the overloads that match the form.
struct Given<'a> {
    name: &'a str,
    types: BTreeSet<&'a str>,
    is_named: bool,
}

/// Returns one line for each form that fails: the SQLSTATE, how the arguments were sent, the
/// statement and the message of the server.
pub async fn misfits(session: &Session) -> Result<Vec<String>> {
    let functions = functions(session).await?;
    ensure!(
        functions.len() > 40,
        "the API is incomplete: {:?}",
        functions.keys()
    );
    let mut misfits = Vec::new();
    for (name, overloads) in &functions {
        for form in forms(name, overloads) {
            misfits.extend(with_literals(session, &form).await?);
            for (how, types) in [
                ("unknown", vec![Type::UNKNOWN; form.given.len()]),
                ("text", form.declared_text()),
            ] {
                let call = form.call(|n, _| Ok(format!("${}", n + 1)))?;
                let prepared = session.prepare_typed(&call, &types).await;
                misfits.extend(misfit(how, &call, prepared.err())?);
            }
        }
    }
    Ok(misfits)
}

/// Plans the statement with literals. CALL cannot be planned, so a procedure is executed.
async fn with_literals(session: &Session, form: &Form<'_>) -> Result<Option<String>> {
    let call = form.call(|_, given| given.literal())?;
    let statement = if form.is_procedure {
        call
    } else {
        format!("EXPLAIN {call}")
    };
    misfit(
        "literal",
        &statement,
        session.simple_query(&statement).await.err(),
    )
}

fn misfit(how: &str, call: &str, error: Option<tokio_postgres::Error>) -> Result<Option<String>> {
    let Some(error) = error else { return Ok(None) };
    let Some(refusal) = error.as_db_error() else {
        return Err(error).with_context(|| call.to_owned());
    };
    let sqlstate = refusal.code().code();
    Ok(Some(format!(
        "{sqlstate} {how}: {call}: {}",
        refusal.message()
    )))
}

/// Returns the forms of a function: with all arguments, without each suffix of the optional
/// arguments, and with each single optional argument passed by name.
fn forms<'a>(function: &'a str, overloads: &'a [Overload]) -> Vec<Form<'a>> {
    let counts: BTreeSet<_> = overloads
        .iter()
        .flat_map(|o| o.required()..=o.arguments.len())
        .collect();
    let mut forms: Vec<_> = counts
        .iter()
        .map(|&count| Form::of(function, overloads, count, None))
        .collect();
    let mut named = BTreeSet::new();
    for overload in overloads {
        for argument in &overload.arguments[overload.required()..] {
            if named.insert((overload.required(), argument.name.as_str())) {
                forms.push(Form::of(
                    function,
                    overloads,
                    overload.required(),
                    Some(&argument.name),
                ));
            }
        }
    }
    forms
}

impl<'a> Form<'a> {
    fn of(
        function: &'a str,
        overloads: &'a [Overload],
        count: usize,
        named: Option<&'a str>,
    ) -> Self {
        let fitting: Vec<_> = overloads
            .iter()
            .filter(|o| (o.required()..=o.arguments.len()).contains(&count))
            .filter(|o| {
                named.is_none_or(|name| o.arguments[count..].iter().any(|a| a.name == name))
            })
            .collect();
        let positions = (0..count).map(|n| Given {
            name: &fitting[0].arguments[n].name,
            types: fitting
                .iter()
                .map(|o| o.arguments[n].of_type.as_str())
                .collect(),
            is_named: false,
        });
        let by_name = named.map(|name| Given {
            name,
            types: fitting
                .iter()
                .flat_map(|o| o.arguments.iter().filter(|a| a.name == name))
                .map(|a| a.of_type.as_str())
                .collect(),
            is_named: true,
        });
        Self {
            function,
            is_procedure: fitting[0].is_procedure,
            given: positions.chain(by_name).collect(),
        }
    }

    /// Returns the statement. `value` returns the SQL text of an argument.
    fn call(&self, value: impl Fn(usize, &Given) -> Result<String>) -> Result<String> {
        let mut arguments = Vec::new();
        for (n, given) in self.given.iter().enumerate() {
            let value = value(n, given)?;
            arguments.push(if given.is_named {
                format!("{} => {value}", given.name)
            } else {
                value
            });
        }
        let verb = if self.is_procedure {
            "CALL"
        } else {
            "SELECT * FROM"
        };
        Ok(format!(
            "{verb} {}({})",
            self.function,
            arguments.join(", ")
        ))
    }

    /// Returns the types of the parameters for a driver that declares `text` for `id` and for each
    /// argument of type text, and declares no type for the other arguments.
    fn declared_text(&self) -> Vec<Type> {
        let of = |given: &Given| given.name == "id" || given.types.contains("text");
        self.given
            .iter()
            .map(|given| if of(given) { Type::TEXT } else { Type::UNKNOWN })
            .collect()
    }
}

impl Given<'_> {
    /// Returns an untyped literal that is valid for each type of this argument.
    fn literal(&self) -> Result<String> {
        let of = |one| self.types.contains(one);
        let value = if of("uuid") {
            "0192f3a4-0000-7abc-8def-0123456789ab"
        } else if of("text[]") || of("uuid[]") {
            "{0192f3a4-0000-7abc-8def-0123456789ab}"
        } else if of("integer") || of("bigint") || of("double precision") {
            "1"
        } else if of("jsonb") || of("json") {
            "{}"
        } else if of("bytea") {
            r"\x00"
        } else if of("interval") {
            "1 second"
        } else if of("boolean") {
            "true"
        } else if of("timestamp with time zone") {
            "2026-01-01 00:00:00Z"
        } else if of("regrole") {
            "postgres"
        } else if of("text") {
            "t"
        } else {
            anyhow::bail!(
                "no literal for {} {:?}: add one here",
                self.name,
                self.types
            )
        };
        Ok(format!("'{value}'"))
    }
}
