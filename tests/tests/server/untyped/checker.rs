//! Makes each call of each function without types and collects those that the server does not
//! resolve.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use idem_tests::harness::Session;
use tokio_postgres::types::Type;

use super::catalog::{Overload, functions};

/// One way to call the overloads of a name: the arguments that are given, by position or by name.
struct Form<'a> {
    function: &'a str,
    is_procedure: bool,
    given: Vec<Given<'a>>,
}

/// An argument that a form gives, and the types it has in the overloads that this form can mean.
struct Given<'a> {
    name: &'a str,
    types: BTreeSet<&'a str>,
    is_named: bool,
}

/// The calls that fail, one a line: SQLSTATE, how the parameters were sent, the call, the server's
/// message.
pub async fn misfits(session: &Session) -> Result<Vec<String>> {
    let functions = functions(session).await?;
    ensure!(
        functions.len() > 40,
        "the API is there: {:?}",
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

/// Plans the call with literals; a procedure has no plan, so it is called.
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

/// All arguments, each suffix of the optional ones left out, and each optional one alone by its
/// name.
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

    /// The statement, with what `value` makes of each argument.
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

    /// The types that a driver declares which declares text.
    fn declared_text(&self) -> Vec<Type> {
        let of = |given: &Given| given.name == "id" || given.types.contains("text");
        self.given
            .iter()
            .map(|given| if of(given) { Type::TEXT } else { Type::UNKNOWN })
            .collect()
    }
}

impl Given<'_> {
    /// A literal without a type that each type of this argument can read.
    fn literal(&self) -> Result<String> {
        let of = |one| self.types.contains(one);
        let value = if of("uuid") {
            "0192f3a4-0000-7abc-8def-0123456789ab"
        } else if of("text[]") || of("uuid[]") {
            "{0192f3a4-0000-7abc-8def-0123456789ab}"
        } else if of("integer") || of("bigint") || of("double precision") {
            "1"
        } else if of("jsonb") {
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
