//! Images of the packages, run as the compose files say: without root, on file systems that they cannot write to, with the
//! capabilities that are named there and no others.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use super::run;

/// What `containers.sh` says if all is well: whom clients reached and as whom they were seen, and what programs may do: the
/// engine has given up CAP_IPC_LOCK, which it needs at start only.
const SAID: &str = "\
10.77.9.21 10.77.9.10
10.77.9.22 10.77.9.10
10.77.9.23 10.77.9.10
127.0.0.1 203.0.113.7
proxyengine Uid=10001 CapEff=0000000000003000 CapBnd=0000000000007000 
mmproxy Uid=10001 CapEff=0000000000001400 CapBnd=0000000000001400 
";

const NGINX: &str = "daemon off; error_log stderr; worker_processes 1; events {}
http { access_log off; server { listen 80; return 200 \"$server_addr $remote_addr\\n\"; } }\n";

/// The images' programs serve clients. `debs` is where the packages are.
pub(crate) fn serve(debs: &Path) {
    let tree = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = tempfile::tempdir().expect("a folder");
    let mut make = Command::new(tree.join("build.sh"));
    make.args(["image", "--debs"])
        .arg(debs)
        .arg("--out")
        .arg(folder.path().join("images"));
    make.env("PROXYENGINE_NO_INSTALL", "1");
    run(&mut make);
    let compose = |file: &str, service: &str| {
        let text = fs::read_to_string(tree.join(file)).expect("the compose file");
        let (_, rest) = text.split_once(&format!("\n  {service}:\n")).expect("the service");
        let lines = rest.lines().take_while(|line| line.starts_with("    "));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let engine = compose("packaging/containers/compose.yaml", "engine");
    let mmproxy = compose("crates/mmproxy/packaging/compose.yaml", "mmproxy");
    bundle(folder.path(), "proxyengine", &engine);
    bundle(folder.path(), "mmproxy", &mmproxy);
    fs::write(folder.path().join("nginx.conf"), NGINX).expect("written");
    let mut all = Command::new("unshare");
    all.args(["--mount", "--net", "--pid", "--fork", "--kill-child", "sh"]);
    all.arg(tree.join("tests/package/containers.sh")).arg(folder.path());
    let output = all.output().expect("unshare");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let log = |name: &str| fs::read_to_string(folder.path().join(format!("{name}.log"))).unwrap_or_default();
    assert!(
        said == SAID,
        "{said}\n{}\nproxyengine: {}\nmmproxy: {}",
        String::from_utf8_lossy(&output.stderr),
        log("proxyengine"),
        log("mmproxy")
    );
}

/// A list in one line of a compose file.
fn list(service: &[String], key: &str) -> Vec<String> {
    let line = service
        .iter()
        .find_map(|line| line.trim().strip_prefix(key)?.strip_prefix(": "));
    let line = line.unwrap_or_else(|| panic!("no {key} in {service:?}"));
    let items = line.trim_start_matches('[').trim_end_matches(']').split(',');
    items.map(|item| item.trim().trim_matches('"').to_owned()).collect()
}

/// Unpacks an image into a bundle that crun runs with what a service of a compose file says.
fn bundle(folder: &Path, name: &str, service: &[String]) {
    let bundle = folder.join(name);
    let (layout, root) = (bundle.join("layout"), bundle.join("rootfs"));
    fs::create_dir_all(&layout).expect("a folder");
    fs::create_dir_all(&root).expect("a folder");
    let archive = only_file(&folder.join("images"), name);
    run(Command::new("tar").arg("-xf").arg(archive).arg("-C").arg(&layout));
    let read = |path: &Path| -> Value {
        let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        serde_json::from_str(&text).expect("JSON")
    };
    let blob = |part: &Value| {
        let digest = part["digest"].as_str().expect("a digest").replace(':', "/");
        layout.join("blobs").join(digest)
    };
    let manifest = read(&blob(&read(&layout.join("index.json"))["manifests"][0]));
    let image = read(&blob(&manifest["config"]));
    run(Command::new("tar")
        .args(["--xattrs", "--xattrs-include=*", "-xpzf"])
        .arg(blob(&manifest["layers"][0]))
        .arg("-C")
        .arg(&root));
    assert!(!root.join("bin/sh").exists() && !root.join("usr/bin/dpkg").exists());
    let user: Vec<u32> = image["config"]["User"]
        .as_str()
        .expect("a user")
        .split(':')
        .map(|id| id.parse().expect("a number"))
        .collect();
    let mut arguments = vec![image["config"]["Entrypoint"][0].as_str().expect("a program").to_owned()];
    arguments.extend(list(service, "command"));
    let capabilities: Vec<String> = list(service, "cap_add")
        .iter()
        .map(|name| format!("CAP_{name}"))
        .collect();
    assert_eq!(list(service, "cap_drop"), ["ALL"]);
    assert!(service.iter().any(|line| line.trim() == "read_only: true"));
    let tmpfs = |at: &str| json!({"destination": at, "type": "tmpfs", "source": "tmpfs"});
    let config = json!({
        "ociVersion": "1.0.0",
        "root": {"path": "rootfs", "readonly": true},
        "process": {
            "user": {"uid": user[0], "gid": user[1]}, "cwd": "/", "args": arguments, "env": ["PATH=/usr/bin"],
            "capabilities": {"bounding": capabilities},
        },
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            tmpfs("/dev"), tmpfs("/tmp"), tmpfs("/run"),
            {"destination": "/sys", "type": "none", "source": "/sys", "options": ["rbind", "ro"]},
            // What the compose file mounts there.
            {"destination": "/etc/proxyengine", "type": "none", "options": ["rbind", "ro"],
             "source": Path::new(env!("CARGO_MANIFEST_DIR")).join("config")},
        ],
        "linux": {"namespaces": [{"type": "mount"}, {"type": "ipc"}, {"type": "uts"}]},
    });
    if name == "mmproxy" {
        fs::create_dir_all(root.join("etc/proxyengine")).expect("a folder");
    }
    fs::write(bundle.join("config.json"), config.to_string()).expect("written");
}

/// The file in a folder whose name begins so.
fn only_file(folder: &Path, name: &str) -> PathBuf {
    let files = fs::read_dir(folder).expect("a folder").flatten();
    let mut files = files.filter(|entry| entry.file_name().to_string_lossy().starts_with(name));
    files.next().expect("a file").path()
}
