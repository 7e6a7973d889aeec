//! `proxyengine mmdb`: the prefixes of a GeoIP or ASN database, as a list's file has them.

use std::collections::BTreeSet;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

use clap::Args;
use maxminddb::{PathElement, Reader, WithinOptions};
use proxyengine::guard::is_class;
use serde::Deserialize;

#[derive(Args, Debug)]
pub(super) struct MmdbArguments {
    /// The database, in the format MaxMind DB.
    database: PathBuf,
    /// Where in its records the class is: names of maps, with dots between them; such as `autonomous_system_number`.
    #[arg(long, value_name = "PATH", default_value = "country.iso_code")]
    class: String,
    /// Only prefixes of these classes, with commas between them.
    #[arg(long, value_name = "CLASSES", value_delimiter = ',')]
    only: Vec<String>,
}

/// What stands where the class is.
#[derive(Deserialize)]
#[serde(untagged)]
enum Class {
    Number(u64),
    Word(String),
}

/// Writes a line for each prefix whose record has a class to standard output: of records without one there is none.
///
/// # Errors
/// A sentence: the database cannot be read or is none, a class is no class of a list, or nothing has one.
pub(super) fn mmdb(arguments: &MmdbArguments) -> Result<(), String> {
    let MmdbArguments { database, class, only } = arguments;
    let said = |error: &dyn std::fmt::Display| format!("{}: {error}", database.display());
    let path: Vec<PathElement<'_>> = class.split('.').map(PathElement::Key).collect();
    let only: BTreeSet<&str> = only.iter().map(String::as_str).collect();
    let reader = Reader::open_readfile(database).map_err(|error| said(&error))?;
    let mut out = BufWriter::new(io::stdout().lock());
    let mut count = 0_usize;
    for found in reader
        .networks(WithinOptions::default())
        .map_err(|error| said(&error))?
    {
        let found = found.map_err(|error| said(&error))?;
        let class = match found.decode_path(&path).map_err(|error| said(&error))? {
            None => continue,
            Some(Class::Number(number)) => number.to_string(),
            Some(Class::Word(word)) => word,
        };
        if !only.is_empty() && !only.contains(class.as_str()) {
            continue;
        }
        let prefix = found.network().map_err(|error| said(&error))?;
        if !is_class(&class) {
            return Err(said(&format_args!(
                "the class of {prefix} is {class:?}, which no list can have; another --class may do"
            )));
        }
        writeln!(out, "{prefix} {class}").map_err(|error| error.to_string())?;
        count += 1;
    }
    out.flush().map_err(|error| error.to_string())?;
    if count == 0 {
        return Err(said(&format_args!(
            "no record has a class at \"{class}\"; mmdblookup shows what they have"
        )));
    }
    Ok(())
}
