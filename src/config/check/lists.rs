//! `[[list]]`: names, and files that are read here.

use std::collections::HashSet;
use std::net::IpAddr;
use std::path::PathBuf;

use super::{name, quoted};
use crate::config::lists::ListConfig;
use crate::config::raw::RawList;
use crate::config::source::{At, Source};
use crate::guard::ListContent;

/// Lists, of which there may be so many: each has a number of two bytes beside others.
const MOST: usize = 1024;

pub(super) fn check(source: &mut Source<'_>, raw: &[RawList]) -> Vec<ListConfig> {
    let mut names = HashSet::new();
    let mut lists = Vec::with_capacity(raw.len());
    let all = At::root().key("list");
    if raw.len() > MOST {
        source.complain(&all, format!("has too many entries, expected at most {MOST}"));
        return lists;
    }
    for (i, raw) in raw.iter().enumerate() {
        let at = all.index(i);
        name(source, &at.key("name"), &raw.name, &mut names);
        if raw.name.parse::<IpAddr>().is_ok() {
            source.refuse(
                &at.key("name"),
                quoted(&raw.name),
                "a name that is no address: rules name either",
            );
        }
        let file = raw.file.as_ref().map(PathBuf::from);
        let content = match file.as_deref().map(ListContent::load) {
            None => ListContent::default(),
            Some(Ok(content)) => content,
            Some(Err(error)) => {
                source.complain(
                    &at.key("file"),
                    format!("{}: {error}", raw.file.as_deref().unwrap_or_default()),
                );
                ListContent::default()
            }
        };
        lists.push(ListConfig::new(raw.name.clone(), file, content));
    }
    lists
}
