/* Names of models: paths as they are, owner/name from the local cache only, and nothing that leads out of it. */
#include "loader/checkpoint.h"
#include "temp_dir.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#define HASH "0123456789abcdef0123456789abcdef01234567"

static void make_dir(const temp_dir *dir, const char *name)
{
    temp_path path = temp_dir_path(dir, name);
    for (char *slash = path.text + strlen(dir->path) + 1; (slash = strchr(slash, '/')) != NULL; slash++) {
        *slash = '\0';
        (void)mkdir(path.text, 0755);
        *slash = '/';
    }
    assert_int_equal(mkdir(path.text, 0755), 0);
}

static void clear_environment(void)
{
    static const char *const names[] = {"HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME", "HOME"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        unsetenv(names[i]);
}

static void put_model(const temp_dir *dir, const char *hub)
{
    char name[256];
    snprintf(name, sizeof name, "%s/models--own.er--na_me-1/refs", hub);
    make_dir(dir, name);
    snprintf(name, sizeof name, "%s/models--own.er--na_me-1/snapshots/" HASH, hub);
    make_dir(dir, name);
    snprintf(name, sizeof name, "%s/models--own.er--na_me-1/refs/main", hub);
    temp_dir_write(dir, name, HASH, strlen(HASH));
}

static void expect_found(const temp_dir *dir, const char *hub)
{
    char     buf[2048], expected[2048];
    nw_error err = {0};
    snprintf(expected, sizeof expected, "%s/%s/models--own.er--na_me-1/snapshots/" HASH, dir->path, hub);
    if (nw_model_path_find("own.er/na_me-1", buf, sizeof buf, &err) != NW_OK)
        fail_msg("%s: %s", hub, err.msg);
    assert_string_equal(buf, expected);
}

static void expect_missing(const char *name, const char *word)
{
    char     buf[2048] = "untouched";
    nw_error err = {0};
    nw_code  rc = nw_model_path_find(name, buf, sizeof buf, &err);
    if (rc != NW_E_ARG || strstr(err.msg, word) == NULL)
        fail_msg("'%s': %d '%s'", name, (int)rc, err.msg);
    assert_string_equal(buf, "untouched");
}

static void test_cache_places(void **state)
{
    (void)state;
    static const struct {
        const char *variable, *value, *hub;
    } cases[] = {
        {"HF_HUB_CACHE", "hubdir", "hubdir"},
        {"HF_HOME", "hfhome", "hfhome/hub"},
        {"XDG_CACHE_HOME", "xdg", "xdg/huggingface/hub"},
        {"HOME", "home", "home/.cache/huggingface/hub"},
    };
    temp_dir dir = temp_dir_make();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        put_model(&dir, cases[i].hub);
    clear_environment();
    expect_missing("own.er/na_me-1", "huggingface-cli download own.er/na_me-1");
    for (size_t i = sizeof cases / sizeof *cases; i-- > 0;) { /* each overrules those after it */
        assert_int_equal(setenv(cases[i].variable, temp_dir_path(&dir, cases[i].value).text, 1), 0);
        expect_found(&dir, cases[i].hub);
    }
    assert_int_equal(setenv("HF_HUB_CACHE", "", 1), 0); /* empty is unset */
    expect_found(&dir, "hfhome/hub");
    clear_environment();
    temp_dir_remove(&dir);
}

static void test_paths(void **state)
{
    (void)state;
    char     buf[2048], small[8];
    nw_error err = {0};
    temp_dir dir = temp_dir_make();
    clear_environment();
    assert_int_equal(nw_model_path_find(dir.path, buf, sizeof buf, &err), NW_OK);
    assert_string_equal(buf, dir.path);
    assert_int_equal(nw_model_path_find(dir.path, small, sizeof small, &err), NW_E_ARG);
    assert_int_equal(nw_model_path_find(dir.path, buf, strlen(dir.path), &err), NW_E_ARG); /* no room for the NUL */
    assert_int_equal(nw_model_path_find(dir.path, buf, strlen(dir.path) + 1, &err), NW_OK);

    /* a path of that form comes before the cache */
    put_model(&dir, "hub");
    assert_int_equal(setenv("HF_HUB_CACHE", temp_dir_path(&dir, "hub").text, 1), 0);
    make_dir(&dir, "own.er/na_me-1");
    char before[1024];
    assert_non_null(getcwd(before, sizeof before));
    assert_int_equal(chdir(dir.path), 0);
    assert_int_equal(nw_model_path_find("own.er/na_me-1", buf, sizeof buf, &err), NW_OK);
    assert_string_equal(buf, "own.er/na_me-1");
    assert_int_equal(chdir(before), 0);
    expect_found(&dir, "hub");
    clear_environment();
    temp_dir_remove(&dir);
}

static void test_no_names(void **state)
{
    (void)state;
    static const char *const names[] = {
        "model", "a/b/c", "/a/b",  "a/",    "/a",    "./model", "../model", "a/..",
        "a/.",   "a//b",  "a b/c", "a/b\n", "a/b?c", "~/model", "a:b/c",    "a/b/",
    };
    temp_dir dir = temp_dir_make();
    clear_environment();
    assert_int_equal(setenv("HF_HUB_CACHE", dir.path, 1), 0);
    char before[1024];
    assert_non_null(getcwd(before, sizeof before));
    assert_int_equal(chdir(dir.path), 0); /* where none of these exists */
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        expect_missing(names[i], "model '");
        nw_error err = {0};
        char     buf[64];
        (void)!nw_model_path_find(names[i], buf, sizeof buf, &err);
        assert_null(strstr(err.msg, "huggingface-cli")); /* no command for what is no name */
    }
    expect_missing("", "empty");
    assert_int_equal(chdir(before), 0);
    clear_environment();
    temp_dir_remove(&dir);
}

static void test_hostile_refs(void **state)
{
    (void)state;
    static const char *const refs[] = {
        "",
        "\n",
        "..",
        ".",
        "../../../evil",
        "/etc",
        "a/b",
        HASH "/..",
        HASH " x",
        "x\\y",
        HASH "\n" HASH,
        "0123456789012345678901234567890123456789012345678901234567890123456789",
        "ffff",
    };
    temp_dir    dir = temp_dir_make();
    const char *main_name = "hub/models--own.er--na_me-1/refs/main";
    put_model(&dir, "hub");
    make_dir(&dir, "hub/models--own.er--na_me-1/snapshots/a/b"); /* a lead that must not be followed */
    clear_environment();
    assert_int_equal(setenv("HF_HUB_CACHE", temp_dir_path(&dir, "hub").text, 1), 0);
    for (size_t i = 0; i < sizeof refs / sizeof *refs; i++) {
        temp_dir_write(&dir, main_name, refs[i], strlen(refs[i]));
        expect_missing("own.er/na_me-1", "huggingface-cli download");
    }
    temp_dir_write(&dir, main_name, HASH "\0x", strlen(HASH) + 2);
    expect_missing("own.er/na_me-1", "huggingface-cli download");
    temp_dir_write(&dir, main_name, HASH "\r\n", strlen(HASH) + 2);
    expect_found(&dir, "hub");

    temp_path main_path = temp_dir_path(&dir, main_name);
    assert_int_equal(unlink(main_path.text), 0);
    assert_int_equal(mkfifo(main_path.text, 0600), 0); /* must not hang */
    expect_missing("own.er/na_me-1", "huggingface-cli download");
    assert_int_equal(unlink(main_path.text), 0);
    assert_int_equal(mkdir(main_path.text, 0700), 0);
    expect_missing("own.er/na_me-1", "huggingface-cli download");
    clear_environment();
    temp_dir_remove(&dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cache_places),
        cmocka_unit_test(test_paths),
        cmocka_unit_test(test_no_names),
        cmocka_unit_test(test_hostile_refs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
