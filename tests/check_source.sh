#!/bin/sh
# Holds the sources to the rules of HACKING.md that a compiler does not check: layers, third-party headers, registration,
# sizes, names. Prints file:line for each finding; exit status 1 if there is any.
#
#   check_source.sh              check the tree ($srcdir, else the folder above this script) and the objects of the
#                                build in the current folder, if there are any
#   check_source.sh --self-test  plant a violation of every rule in a scratch copy and expect each to be found
set -u
LC_ALL=C
export LC_ALL

max_file_lines=500
max_function_lines=60
max_kernel_function_lines=120
max_columns=110

self=$(cd "$(dirname "$0")" && pwd)/$(basename "$0")
tree=$(cd "${srcdir:-$(dirname "$self")/..}" && pwd) || exit 1

# ---- what the tree holds, relative to its top ----

c_files()
{
    find src kernels data bench tests -name '*.[ch]' 2>/dev/null | sort
}

other_files()
{
    ls bootstrap .ci/run configure.ac Makefile.am .clang-format src/plugins.def 2>/dev/null
    find tests data bench -name '*.sh' 2>/dev/null | sort
}

# ---- line by line ----

# Layers, third-party headers, forbidden calls, sizes, guards.
check_lines()
{
    # shellcheck disable=SC2016 # awk's variables
    c_files | xargs awk -v max_file="$max_file_lines" -v max_fn="$max_function_lines" \
        -v max_kernel="$max_kernel_function_lines" -v max_columns="$max_columns" '
    BEGIN {
        # The table of DESIGN section "layers" as it stands in HACKING.md: which folder may include which.
        allow["core"] = " core "
        allow["topo"] = " core topo "
        allow["kernels"] = " core kernels "
        allow["data"] = " core data "
        allow["device"] = " core topo kernels device "
        allow["reduce"] = " core topo kernels device reduce "
        allow["nn"] = " core kernels device nn "

        # Third-party headers and the sources that may include them.
        n_foreign = 0
        foreign("^hwloc", "^src/topo/")
        foreign("^numa(if)?[.]h$", "^src/topo/")
        foreign("^zlib[.]h$", "^data/")
        foreign("^jansson[.]h$", "^(src/train|bench)/")
        foreign("^omp[.]h$", "^src/core/team[.]c$")
        foreign("^Random123/", "^src/core/rng[.]c$")
        foreign("^dlfcn[.]h$", "^kernels/cpu/blas_openblas[.]c$")
        foreign("^cmocka[.]h$", "^tests/")
    }
    function foreign(header, user) {
        foreign_header[++n_foreign] = header
        foreign_user[n_foreign] = user
    }
    function finding(text) { print FILENAME ":" FNR ": " text }
    function layer_of(path) {
        if (match(path, /^src\/[a-z]+\//)) return substr(path, 5, RLENGTH - 5)
        if (match(path, /^(kernels|data|bench|tests)\//)) return substr(path, 1, RLENGTH - 1)
        return "top"
    }
    # The folder that an include names: "core/status.h" is core.
    function folder_of(header) {
        if (match(header, /^(core|topo|kernels|data|device|reduce|nn|train|bench|tests)\//))
            return substr(header, 1, RLENGTH - 1)
        return ""
    }
    # LINE without comments and the insides of literals; remembers an open comment in in_comment.
    function code_of(line,    out) {
        out = ""
        while (line != "") {
            if (in_comment) {
                if (!match(line, /\*\//)) return out
                line = substr(line, RSTART + 2)
                in_comment = 0
                continue
            }
            if (!match(line, /\/\*|\/\/|"|\047/)) return out line
            out = out substr(line, 1, RSTART - 1)
            line = substr(line, RSTART)
            if (line ~ /^\/\//) return out
            if (line ~ /^\/\*/) {
                in_comment = 1
                line = substr(line, 3)
            } else if (match(line, /^"([^"\\]|\\.)*"/) || match(line, /^\047([^\047\\]|\\.)*\047/)) {
                out = out "\"\""
                line = substr(line, RLENGTH + 1)
            } else {
                return out
            }
        }
        return out
    }
    function check_include(line,    header, quoted, folder, i) {
        quoted = line ~ /include *"/
        if (!match(line, /["<][^">]+[">]/)) return
        header = substr(line, RSTART + 1, RLENGTH - 2)
        if (!quoted) {
            for (i = 1; i <= n_foreign; i++) {
                if (header !~ foreign_header[i]) continue
                if (FILENAME ~ /[.]h$/ && layer != "tests")
                    finding("<" header ">: no third-party header in a header of ours")
                else if (FILENAME !~ foreign_user[i] && layer != "tests")
                    finding("<" header "> is not for this file")
            }
            return
        }
        if (header == "plugins.def" && FILENAME == "src/plugins.c") return
        folder = folder_of(header)
        if (folder == "") finding("\"" header "\": name headers by folder, as \"core/status.h\"")
        else if (layer in allow && index(allow[layer], " " folder " ") == 0)
            finding("layer " layer " may not include \"" header "\"")
        else if (folder == "tests" && layer != "tests") finding("\"" header "\" is for tests")
    }
    function end_of_file() {
        if (last_file == "") return
        if (last_line > max_file) print last_file ":" last_line ": file has more than " max_file " lines"
        if (last_file ~ /[.]h$/ && !guarded) print last_file ":1: no include guard DPN_..._H"
    }

    FNR == 1 {
        end_of_file()
        last_file = FILENAME
        layer = layer_of(FILENAME)
        in_comment = 0; body = 0; guard = ""; guarded = 0; name = ""
        if ($0 !~ /^\/\*/) finding("the file does not open with a comment")
    }
    {
        last_line = FNR
        if (length($0) > max_columns) finding("line has " length($0) " columns (limit " max_columns ")")
        if ($0 ~ /[ \t\r]$/) finding("trailing blank")
        if ($0 ~ /\t/) finding("tab")
        if ($0 ~ /fast-math/) finding("fast-math")
        if (!in_comment && $0 ~ /^ *# *include/) check_include($0)

        code = code_of($0)
        if (guard == "" && $0 ~ /^#ifndef DPN_[A-Z0-9_]+_H$/) guard = substr($0, 9)
        else if (guard != "" && $0 == "#define " guard) guarded = 1
        if (code ~ /# *pragma +omp/ && code !~ /pragma +omp +simd/ && FILENAME != "src/core/team.c")
            finding("OpenMP outside src/core/team.c")
        if (code ~ /^ *# *(if|ifdef|ifndef|elif).*HAVE_/ && layer != "tests")
            finding("#if HAVE_... outside src/plugins.def")
        if (code ~ /(^|[^A-Za-z0-9_])typedef +(struct|union|enum)([^A-Za-z0-9_]|$)/)
            finding("typedef of a struct, union or enum")
        if (code ~ /atomic_thread_fence|__sync_synchronize/) finding("fence: ThreadSanitizer does not see it")
        if (code ~ /(^|[^A-Za-z0-9_])dlopen *\(/ && FILENAME != "kernels/cpu/blas_openblas.c" && layer != "tests")
            finding("dlopen outside kernels/cpu/blas_openblas.c")
        if (code ~ /(^|[^A-Za-z0-9_])exit *\(/ && FILENAME != "src/main.c" && layer != "tests")
            finding("exit outside src/main.c")
        if (code ~ /(^|[^A-Za-z0-9_])_[eE]xit *\(/ && FILENAME != "src/train/progress.c" && layer != "tests")
            finding("_exit outside src/train/progress.c")

        # A function body runs from a brace in column 1 to the next one.
        if ($0 ~ /^[A-Za-z_].*\(/) {
            name = $0
            sub(/\(.*/, "", name)
            sub(/.*[^A-Za-z0-9_]/, "", name)
        }
        if ($0 ~ /^{/) body = FNR
        if ($0 ~ /^}/ && body) {
            limit = layer == "kernels" ? max_kernel : max_fn
            if (FNR - body + 1 > limit)
                print FILENAME ":" body ": function " name " has " FNR - body + 1 " lines (limit " limit ")"
            body = 0
        }
    }
    END { end_of_file() }'

    # shellcheck disable=SC2046 # names of our own files: no blanks
    awk '/[ \t\r]$/ { print FILENAME ":" FNR ": trailing blank" }
         /-ffast-math/ && FILENAME !~ /check_source/ { print FILENAME ":" FNR ": fast-math" }' $(other_files)
}

# ---- registration ----

# Every line of plugins.def has a definition in a file of its registry, and every definition and every file a line.
check_plugins()
{
    # shellcheck disable=SC2016
    c_files | grep -v '^tests/' | xargs awk '
    BEGIN {
        where["device"] = "^src/device/device_[a-z0-9_]+[.]c$"
        where["reducer"] = "^src/reduce/reduce_[a-z0-9_]+[.]c$"
        where["op"] = "^src/nn/op_[a-z0-9_]+[.]c$"
        where["model"] = "^src/nn/zoo[.]c$"
        where["optimizer"] = "^src/nn/optim_[a-z0-9_]+[.]c$"
        where["dataset"] = "^data/data_[a-z0-9_]+[.]c$"
        where["mode"] = "^src/train/mode_[a-z0-9_]+[.]c$"
        where["command"] = "^(src/train|bench)/cmd_[a-z0-9_]+[.]c$"
        not_a_plugin["src/reduce/reduce_check.c"] = 1 # wraps another reducer
        not_a_plugin["src/reduce/reduce_util.c"] = 1  # what reducers share
    }
    FILENAME == "src/plugins.def" {
        if ($0 !~ /^DPN_PLUGIN\([a-z]+, [a-z0-9_]+\)$/) {
            if ($0 ~ /^DPN_PLUGIN/) print FILENAME ":" FNR ": not of the form DPN_PLUGIN(registry, symbol)"
            next
        }
        registry = $0; sub(/^DPN_PLUGIN\(/, "", registry); sub(/,.*/, "", registry)
        symbol = $0; sub(/.*, /, "", symbol); sub(/\).*/, "", symbol)
        if (!(registry in where)) print FILENAME ":" FNR ": unknown registry " registry
        line["dpn_" registry "_" symbol] = FNR
        registry_of["dpn_" registry "_" symbol] = registry
        next
    }
    FNR == 1 {
        for (r in where) if (FILENAME ~ where[r] && !(FILENAME in not_a_plugin)) candidate[FILENAME] = 1
    }
    /^const struct dpn_[a-z_]+ dpn_[a-z0-9_]+ *= *[{]/ {
        symbol = $0; sub(/ *= *[{].*/, "", symbol); sub(/.* /, "", symbol)
        registry = symbol; sub(/^dpn_/, "", registry); sub(/_.*/, "", registry)
        if (!(registry in where)) next
        if (!(symbol in line)) print FILENAME ":" FNR ": " symbol " has no line in src/plugins.def"
        else if (FILENAME !~ where[registry])
            print FILENAME ":" FNR ": " symbol " belongs into a file named like " where[registry]
        defined[symbol] = 1
        delete candidate[FILENAME]
    }
    END {
        for (symbol in line) if (!(symbol in defined))
            print "src/plugins.def:" line[symbol] ": no file like " where[registry_of[symbol]] " defines " symbol
        for (file in candidate) print file ":1: named like a plug-in but defines none"
    }' src/plugins.def
}

# Makefile.am names every source file and test, and nothing that is not there.
check_makefile()
{
    words=$(awk '{ for (i = 1; i <= NF; i++) print $i }' Makefile.am)
    {
        c_files
        find tests -name '*.sh'
    } | while read -r file; do
        case $file in
            tests/*/test_*.c) word=${file%.c} ;;
            *) word=$file ;;
        esac
        echo "$words" | grep -qxF "$word" || echo "$file:1: not named in Makefile.am"
    done
    echo "$words" | grep -E '^(src|kernels|data|bench|tests|docs)/[A-Za-z0-9_./-]*[.](c|h|def|sh|md|1)$' | sort -u |
    while read -r file; do
        [ -e "$file" ] || echo "Makefile.am:1: names $file, which is not there"
    done
}

# The man page describes every option of the table and every command.
check_man_page()
{
    sed -nE 's/^ *(FLAG|U64|DOUBLE|STRING|CHOICE)?[({]"([a-z0-9-]+)",.*/\2/p' src/core/options_table.c \
        >"$scratch/options"
    [ -s "$scratch/options" ] || echo "src/core/options_table.c:1: no options recognised in the table"
    while read -r option; do
        sed 's/\\-/-/g; s/\\//g' docs/dpnode.1 | grep -qE -- "--$option([^a-z0-9-]|\$)" ||
            echo "docs/dpnode.1:1: option --$option is not described"
    done <"$scratch/options"
    sed -n 's/^DPN_PLUGIN(command, \([a-z]*\))$/\1/p' src/plugins.def | while read -r command; do
        grep -qE "^\\.(B|BR|SS) (dpnode )?$command( |\$)" docs/dpnode.1 ||
            echo "docs/dpnode.1:1: command $command is not described"
    done
}

# External names start with dpn_. Names with two underscores are the compiler's and the sanitizers'.
check_symbols()
{
    command -v nm >/dev/null 2>&1 || return 0
    [ -e "$build/libdpnode.a" ] || return 0
    nm -A -g --defined-only "$build/libdpnode.a" 2>/dev/null |
        awk '$NF !~ /^(dpn_|__)/ {
                 object = $1
                 sub(/.*libdpnode[.]a:/, "libdpnode.a:", object)
                 sub(/:[0-9a-f]*$/, "", object)
                 print object ":1: external symbol " $NF
             }'
}

check_tree()
{
    build=$PWD
    cd "$tree" || exit 1
    scratch=$(mktemp -d) || exit 1
    {
        check_lines
        check_plugins
        check_makefile
        check_man_page
        check_symbols
    } >"$scratch/findings" 2>&1
    sort -u "$scratch/findings"
    count=$(sort -u "$scratch/findings" | wc -l)
    rm -rf "$scratch"
    if [ "$count" -gt 0 ]; then
        echo "check_source: $count findings"
        exit 1
    fi
    echo "check_source: $(c_files | wc -l) files, no findings"
}

# ---- the self-test ----

# plant FILE TEXT...: writes the lines; expect FINDING: what the check must print.
plant()
{
    mkdir -p "$copy/$(dirname "$1")"
    file=$copy/$1
    shift
    printf '%s\n' "$@" >"$file"
}
expect()
{
    echo "$1" >>"$copy.expected"
}

plant_lines()
{
    plant src/core/planted.c '/* Planted. */' '#include "nn/nn.h"' '#include <zlib.h>' '#include "status.h"' \
        'void dpn_planted(void) { exit(1); }' 'void dpn_planted2(void) { _exit(1); }' \
        'typedef struct planted planted;' 'void dpn_planted3(void) { atomic_thread_fence(0); }' \
        '#pragma omp parallel' '#if HAVE_PLANTED' '#endif' 'int dpn_blank; ' '	int dpn_tab;' \
        'void *dpn_planted4 = dlopen(dpn_name, 1);' '/* -ffast-math */' \
        '/* exit(1) in a comment, */ /* also' ' exit(1) over lines, */ const char *dpn_text = "exit(1)";'
    expect 'src/core/planted.c:2: layer core may not include "nn/nn.h"'
    expect 'src/core/planted.c:3: <zlib.h> is not for this file'
    expect 'src/core/planted.c:4: "status.h": name headers by folder'
    expect 'src/core/planted.c:5: exit outside src/main.c'
    expect 'src/core/planted.c:6: _exit outside src/train/progress.c'
    expect 'src/core/planted.c:7: typedef of a struct'
    expect 'src/core/planted.c:8: fence'
    expect 'src/core/planted.c:9: OpenMP outside src/core/team.c'
    expect 'src/core/planted.c:10: #if HAVE_'
    expect 'src/core/planted.c:12: trailing blank'
    expect 'src/core/planted.c:13: tab'
    expect 'src/core/planted.c:14: dlopen outside'
    expect 'src/core/planted.c:15: fast-math'
    expect 'src/core/planted.c:1: not named in Makefile.am'

    plant src/nn/planted.h 'int dpn_x;' '#include <hwloc.h>' '#include "reduce/reduce.h"'
    expect 'src/nn/planted.h:1: the file does not open with a comment'
    expect 'src/nn/planted.h:1: no include guard'
    expect 'src/nn/planted.h:2: <hwloc.h>: no third-party header in a header of ours'
    expect 'src/nn/planted.h:3: layer nn may not include "reduce/reduce.h"'

    plant src/reduce/planted.c '/* Planted. */' '#include "nn/nn.h"'
    expect 'src/reduce/planted.c:2: layer reduce may not include "nn/nn.h"'
    plant kernels/planted.c '/* Planted. */' '#include "topo/topo.h"'
    expect 'kernels/planted.c:2: layer kernels may not include "topo/topo.h"'

    awk 'BEGIN { print "/* Planted. */\nint dpn_long(void)\n{"; for (i = 0; i < 59; i++) print "    dpn_f();"; print "}"
                 for (i = 0; i < 440; i++) print "int dpn_y;"; printf "/*%120s*/\n", "" }' >"$copy/src/core/long.c"
    expect 'src/core/long.c:3: function dpn_long has 61 lines (limit 60)'
    expect 'src/core/long.c:504: file has more than 500 lines'
    expect 'src/core/long.c:504: line has 124 columns (limit 110)'
}

plant_registration()
{
    plant src/nn/op_planted.c '/* Planted. */' 'const struct dpn_op_class dpn_op_planted = {' '};'
    expect 'src/nn/op_planted.c:2: dpn_op_planted has no line in src/plugins.def'
    plant src/train/cmd_planted.c '/* Planted. */'
    expect 'src/train/cmd_planted.c:1: named like a plug-in but defines none'
    echo 'DPN_PLUGIN(reducer, planted)' >>"$copy/src/plugins.def"
    expect 'no file like ^src/reduce/reduce_[a-z0-9_]+[.]c$ defines dpn_reducer_planted'
    plant tests/cli/planted.sh '#!/bin/sh'
    expect 'tests/cli/planted.sh:1: not named in Makefile.am'
    echo 'planted = src/core/missing.c -ffast-math' >>"$copy/Makefile.am"
    expect 'Makefile.am:1: names src/core/missing.c, which is not there'
    expect "Makefile.am:$(wc -l <"$copy/Makefile.am"): fast-math"
    echo 'FLAG("planted-option", PLACEMENT' >>"$copy/src/core/options_table.c"
    expect 'docs/dpnode.1:1: option --planted-option is not described'
    echo 'DPN_PLUGIN(command, planted)' >>"$copy/src/plugins.def"
    expect 'docs/dpnode.1:1: command planted is not described'
}

# Needs a compiler; the rest of the self-test does not.
plant_symbol()
{
    cc=$(command -v cc || command -v gcc || command -v clang) || return 0
    command -v nm >/dev/null 2>&1 && command -v ar >/dev/null 2>&1 || return 0
    echo 'int stray;' >"$copy.build/stray.c"
    (cd "$copy.build" && "$cc" -c stray.c && ar rc libdpnode.a stray.o) || return 0
    expect 'libdpnode.a:stray.o:1: external symbol stray'
}

self_test()
{
    place=$(mktemp -d) || exit 1
    trap 'rm -rf "$place"' EXIT
    copy=$place/tree
    mkdir "$copy" "$copy.build"
    (cd "$tree" && find src kernels data bench tests docs Makefile.am configure.ac -type f ! -path 'tests/reference/*' \
        2>/dev/null | tar -cf - -T -) | tar -xf - -C "$copy" || exit 1
    chmod -R u+w "$copy"
    : >"$copy.expected"
    plant_lines
    plant_registration
    plant_symbol
    (cd "$copy.build" && srcdir=$copy "$self") >"$copy.output" 2>&1
    status=$?
    missed=0
    if [ "$status" -ne 1 ]; then
        echo "exit status $status with violations planted, 1 expected"
        missed=1
    fi
    while read -r finding; do
        grep -qF -- "$finding" "$copy.output" || { echo "not found: $finding"; missed=1; }
    done <"$copy.expected"
    if grep -E '^src/core/planted.c:1[67]:' "$copy.output"; then
        echo "found in comments or strings"
        missed=1
    fi
    [ "$missed" -eq 0 ] || exit 1
    echo "check_source: all $(wc -l <"$copy.expected") planted violations were found"
}

case ${1-} in
    --self-test) self_test ;;
    '') check_tree ;;
    *) echo "usage: check_source.sh [--self-test]" >&2; exit 2 ;;
esac
